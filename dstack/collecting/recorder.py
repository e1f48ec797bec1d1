"""Records in a child process, which can be killed at any time; what was received until then is kept.

The child is :mod:`dstack.collecting.recording_session`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dstack.errors import ClusterError
from dstack.model.recording import JoinedRecording, Recording, RecordingOptions
from dstack.processes.child import Child, Message
from dstack.words import plural

START_S = 45.0
"""How long the start of the recording may take."""
LATE_S = 10.0
"""How long after its end, or after the user has ended it, the last rounds are awaited; usually under a second."""
TURN_S = 0.5
LONGER = "Run dstack on a host with more free CPU time."


class Recorder:
    """Makes one recording of a cluster; ``job`` is what the user calls the only job to record."""

    def __init__(
        self,
        address: str | None,
        duration_s: float,
        rate_hz: float,
        options: RecordingOptions,
        job: str | None = None,
    ) -> None:
        self._duration_s = duration_s
        program = "dstack.collecting.recording_session"
        self._child = Child(program, address, duration_s, rate_hz, options, job, start_new_session=True)
        self._stopped_at: float | None = None
        self._began = 0.0
        self._recorded_s = 0.0
        self._joined: JoinedRecording | None = None

    def record(self, progress: Callable[[str], None]) -> Recording:
        """Record until the duration has passed, or another thread or a signal handler calls :meth:`stop`.

        Raises :class:`dstack.DstackError` if nothing was recorded.
        """
        progress("starting")
        try:
            self._receive(progress)
        except (EOFError, TimeoutError) as error:
            if self._joined is None:
                raise self._why_nothing(is_late=isinstance(error, TimeoutError)) from None
        finally:
            self._child.close()
        assert self._joined is not None
        return self._joined.recording(round(self._recorded_s, 3))

    def stop(self) -> None:
        """End the recording after the current round, and keep what was recorded; the second time, end it at once."""
        if self._stopped_at is not None:
            self._child.kill()
            return
        self._stopped_at = time.monotonic()
        self._child.finish()

    def _receive(self, progress: Callable[[str], None]) -> None:
        """Take messages until the last one. Raises ``EOFError`` or ``TimeoutError`` if it does not come."""
        started = time.monotonic()
        while (message := self._next(started)).kind != "end":
            progress(message.value if message.kind == "progress" else self._take(message))

    def _take(self, message: Message) -> str:
        """Keep a part; returns what was recorded so far, in words."""
        now = time.monotonic()
        if self._joined is None:
            self._joined = JoinedRecording(message.value)
            self._began = now
        else:
            self._joined.add(message.value)
        seconds = min(now - self._began, self._duration_s)
        if self._stopped_at is None:
            self._recorded_s = seconds
        return f"recorded {seconds:.0f} of {self._duration_s:g} s, {plural(self._joined.samples, 'sample')}"

    def _next(self, started: float) -> Message:
        """The next message. Waits in turns, since :meth:`stop` may change the deadline meanwhile."""
        while True:
            try:
                return self._child.receive(time.monotonic() + TURN_S)
            except TimeoutError:
                if time.monotonic() > self._deadline(started):
                    raise

    def _deadline(self, started: float) -> float:
        if self._stopped_at is not None:
            return self._stopped_at + LATE_S
        return started + START_S if self._joined is None else self._began + self._duration_s + LATE_S

    def _why_nothing(self, *, is_late: bool) -> ClusterError:
        """The error for a child that has recorded nothing."""
        if self._stopped_at is not None:
            return ClusterError("The recording was ended before it began.")
        if is_late:
            return ClusterError(f"The recording did not begin within {START_S:g} s.", LONGER)
        return ClusterError(f"The process that records {self._child.how_ended()}.", "Try again.")
