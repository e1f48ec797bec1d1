"""Records or profiles in a child process, which can be killed at any time; what was received until then is kept.

The child is :mod:`dstack.collecting.recording_session` or :mod:`dstack.collecting.profile_session`, which both run
:func:`serve`. It sends ``progress`` with the current step; ``began`` with a result that is empty; a ``part`` whenever
there is one; ``end``; or ``error``. It ends with its parent, and ends its work when that sends no more requests.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from dstack.errors import ClusterError
from dstack.processes.child import Child, Message, Parent

if TYPE_CHECKING:
    from dstack.model.profile import Profile, ProfileOptions
    from dstack.model.recording import Recording, RecordingOptions

START_S = 45.0
"""How long the start of the recording may take."""
LATE_S = 10.0
"""How long after its end, or after the user has ended it, the last rounds are awaited; usually under a second."""
TURN_S = 0.5
FOR_EVER_S = 1e8
"""The duration of what only the user ends: three years."""
LONGER = "Run dstack on a host with more free CPU time."


PartT = TypeVar("PartT", contravariant=True)
WholeT = TypeVar("WholeT", covariant=True)
T = TypeVar("T")


class Joined(Protocol[PartT, WholeT]):
    """A result that grows with each part."""

    def add(self, part: PartT) -> None:
        """Add a part."""

    @property
    def in_words(self) -> str:
        """How much it has."""

    def whole(self, duration_s: float) -> WholeT:
        """All of it, over so many seconds."""


class Recorder(Generic[T]):
    """Makes one recording of a cluster by the module ``program``, whose ``main`` gets these arguments.

    ``join`` makes a growing result of an empty one.
    """

    def __init__(
        self,
        program: str,
        arguments: tuple[object, ...],
        duration_s: float,
        join: Callable[[T], Joined[Any, T]],
        start_s: float = START_S,
    ) -> None:
        self._duration_s = duration_s
        self._start_s = start_s
        self._join = join
        self._child = Child(program, *arguments, start_new_session=True)
        self._stopped_at: float | None = None
        self._began = 0.0
        self._recorded_s = 0.0
        self._joined: Joined[Any, T] | None = None

    def record(self, progress: Callable[[str], None]) -> T:
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
        return self.so_far()

    def so_far(self) -> T:
        """What was recorded so far, once it :attr:`has_begun`; only the thread that records may call it."""
        assert self._joined is not None
        return self._joined.whole(round(self._recorded_s, 3))

    @property
    def has_begun(self) -> bool:
        """Whether there is a result, which may be empty."""
        return self._joined is not None

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
            self._joined = self._join(message.value)
            self._began = now
        else:
            self._joined.add(message.value)
        seconds = min(now - self._began, self._duration_s)
        if self._stopped_at is None:
            self._recorded_s = seconds
        of = f" of {self._duration_s:g}" if self._duration_s < FOR_EVER_S else ""
        return f"recorded {seconds:.0f}{of} s, {self._joined.in_words}"

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
        return started + self._start_s if self._joined is None else self._began + self._duration_s + LATE_S

    def _why_nothing(self, *, is_late: bool) -> ClusterError:
        """The error for a child that has recorded nothing."""
        if self._stopped_at is not None:
            return ClusterError("The recording was ended before it began.", "Record again.")
        if is_late:
            return ClusterError(f"The recording did not begin within {START_S:g} s.", LONGER)
        return ClusterError(
            f"The process that records {self._child.how_ended()}.",
            "Try again. If it happens again, check whether this host is out of memory.",
        )


def new_recording(
    address: str | None, duration_s: float, rate_hz: float, options: RecordingOptions, job: str | None = None
) -> Recorder[Recording]:
    """A recording of a cluster's threads; ``job`` is what the user calls the only job to record."""
    from dstack.model.recording import JoinedRecording

    arguments = (address, duration_s, rate_hz, options, job)
    return Recorder("dstack.collecting.recording_session", arguments, duration_s, JoinedRecording)


def new_profile(
    address: str | None,
    duration_s: float,
    rate_hz: float,
    options: ProfileOptions,
    job: str | int | None = None,
    program: int | None = None,
) -> Recorder[Profile]:
    """A profile of a cluster's wall-clock time.

    ``job`` is what the user calls the only job to follow, or the pid of its driver on this host.

    With a ``program``, a pid, it is the cluster that this process starts, or joins at the address, whenever it does.
    """
    from dstack.model.profile import JoinedProfile

    arguments = (address, duration_s, rate_hz, options, job, program)
    start_s = START_S if program is None else FOR_EVER_S
    return Recorder("dstack.collecting.profile_session", arguments, duration_s, JoinedProfile, start_s)


class ServedRecording(Protocol):
    """What a child does: an empty result, then its parts until it is stopped by another thread."""

    @property
    def first(self) -> object:
        """The empty result."""

    def parts(self) -> Iterator[object]:
        """What was recorded since the last part."""

    def stop(self) -> None:
        """End it soon; another thread calls this."""


def serve(parent: Parent, opened: Callable[[Callable[[str], None]], AbstractContextManager[ServedRecording]]) -> None:
    """Make one recording, and send its parts; ``opened`` gets a function for progress."""
    begun: list[ServedRecording] = []
    threading.Thread(target=_stop_with_requests, args=(parent, begun), name="dstack", daemon=True).start()
    with opened(lambda step: parent.send("progress", step)) as session:
        begun.append(session)
        parent.send("began", session.first)
        for part in session.parts():
            parent.send("part", part)
    parent.send("end")


def _stop_with_requests(parent: Parent, begun: list[ServedRecording]) -> None:
    """End the recording when the parent sends no more requests; end the process if there is none yet."""
    for _ in parent:
        pass
    if not begun:
        os._exit(0)
    begun[0].stop()
