"""Records in a child process, which can be killed at any time; what was received until then is kept.

The arguments of the process are ADDRESS DURATION_S RATE_HZ JOB [idle] [gil] [native]. It sends messages (see
:mod:`dstack.processes.child`): ``progress`` with the current step; ``began`` with a recording without samples; a
``part`` for each round of each node; ``end``; or ``error``. It ends the recording when its standard input closes, and
ends with the thread that has started it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import IO, TYPE_CHECKING

from dstack.errors import ClusterError
from dstack.processes.child import Message, Messages, end_child, raise_sent, send, send_error, start_child
from dstack.processes.gc_pause import GcPause
from dstack.words import plural

if TYPE_CHECKING:
    from dstack.collecting.recording_session import RecordingSession
    from dstack.model.recording import JoinedRecording, Recording


START_S = 45.0
"""How long the start of the recording may take."""
LATE_S = 10.0
"""How long after its end, or after the user has ended it, the last rounds are awaited; usually under a second."""
TURN_S = 0.5
LONGER = "Run dstack on a host with more free CPU time."


class Recorder:
    """Makes one recording of a cluster.

    ``options`` are the names of the fields of :class:`dstack.model.recording.RecordingOptions` that are on; ``job`` is
    what the user calls the only job to record.
    """

    def __init__(
        self, address: str | None, duration_s: float, rate_hz: float, options: Collection[str] = (), job: str = ""
    ) -> None:
        self._duration_s = duration_s
        terms = (address or "", str(duration_s), str(rate_hz), job, *options)
        self._child = start_child("dstack.collecting.recorder", *terms, stdin=subprocess.PIPE, start_new_session=True)
        self._stopped_at: float | None = None
        self._began = 0.0
        self._recorded_s = 0.0
        self._joined: JoinedRecording | None = None

    def record(self, progress: Callable[[str], None]) -> Recording:
        """Record until the duration has passed, or another thread or a signal handler calls :meth:`stop`.

        Raises :class:`dstack.DstackError` if nothing was recorded.
        """
        assert self._child.stdout is not None
        progress("starting")
        try:
            self._receive(Messages(self._child.stdout), progress)
        except (EOFError, TimeoutError):
            if self._joined is None:
                raise self._why_ended() from None
        finally:
            end_child(self._child)
        assert self._joined is not None
        return self._joined.recording(round(self._recorded_s, 3))

    def stop(self) -> None:
        """End the recording after the current round, and keep what was recorded; the second time, end it at once."""
        if self._stopped_at is not None:
            self._child.kill()
            return
        self._stopped_at = time.monotonic()
        with contextlib.suppress(OSError):
            assert self._child.stdin is not None
            self._child.stdin.close()

    def _receive(self, messages: Messages, progress: Callable[[str], None]) -> None:
        """Take messages until the last one. Raises ``EOFError`` or ``TimeoutError`` if it does not come."""
        started, step = time.monotonic(), "starting"
        while (message := self._next(messages, started)).kind != "end":
            match message.kind:
                case "progress":
                    step = message.payload.decode("utf-8", "replace")
                case "error":
                    raise_sent(message)
                case "began" | "part":
                    step = self._take(message)
            progress(step)

    def _take(self, message: Message) -> str:
        """Keep a part; returns what was recorded so far, in words."""
        import msgspec

        from dstack.model.recording import JoinedRecording, Recording, RecordingPart

        now = time.monotonic()
        if self._joined is None:
            self._joined = JoinedRecording(msgspec.json.decode(message.payload, type=Recording))
            self._began = now
        else:
            self._joined.add(msgspec.json.decode(message.payload, type=RecordingPart))
        seconds = min(now - self._began, self._duration_s)
        if self._stopped_at is None:
            self._recorded_s = seconds
        return f"recorded {seconds:.0f} of {self._duration_s:g} s, {plural(self._joined.samples, 'sample')}"

    def _next(self, messages: Messages, started: float) -> Message:
        while True:
            with contextlib.suppress(TimeoutError):
                return messages.receive(time.monotonic() + TURN_S)
            if time.monotonic() > self._deadline(started):
                raise TimeoutError

    def _deadline(self, started: float) -> float:
        if self._stopped_at is not None:
            return self._stopped_at + LATE_S
        return started + START_S if self._joined is None else self._began + self._duration_s + LATE_S

    def _why_ended(self) -> ClusterError:
        """The error for a child that has recorded nothing."""
        if self._stopped_at is not None:
            return ClusterError("The recording was ended before it began.")
        if self._child.returncode is None:
            return ClusterError(f"The recording did not begin within {START_S:g} s.", LONGER)
        return ClusterError(f"The process that records exited with code {self._child.returncode}.", "Try again.")


def main(messages: IO[bytes], arguments: list[str]) -> None:
    """Makes one recording and sends its parts, as the module's docstring describes."""
    with contextlib.suppress(BrokenPipeError):  # the parent has ended
        try:
            _record(messages, *arguments[:4], options=arguments[4:])
        except Exception as error:
            send_error(messages, error)


def _record(
    messages: IO[bytes], address: str, duration_s: str, rate_hz: str, job: str, *, options: Collection[str]
) -> None:
    with GcPause():
        from dstack.collecting.recording_session import RecordingSession
        from dstack.files.document_file import to_json
        from dstack.model.recording import RecordingOptions

    def note(step: str) -> None:
        send(messages, "progress", step.encode("utf-8", "replace"))

    how = RecordingOptions(idle="idle" in options, gil="gil" in options, native="native" in options)
    begun: list[RecordingSession] = []
    threading.Thread(target=_stop_at_end_of_input, args=(begun,), name="dstack", daemon=True).start()
    with RecordingSession(address or None, float(duration_s), float(rate_hz), how, job or None, note) as session:
        begun.append(session)
        send(messages, "began", to_json(session.first))
        for part in session.parts():
            send(messages, "part", to_json(part))
    send(messages, "end")


def _stop_at_end_of_input(begun: Sequence[RecordingSession]) -> None:
    """Ends the recording when standard input closes; ends the process if there is none yet."""
    while os.read(0, 1024):
        pass
    if not begun:
        os._exit(0)
    begun[0].stop()
