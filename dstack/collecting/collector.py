"""Takes snapshots in a child process, which can be killed at any time, even while it is blocked.

The child, :mod:`dstack.collecting.capture`, holds a session: it keeps its connection to the cluster, and the probes
there, between requests.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from dstack.errors import ClusterError, DstackError
from dstack.observed.reading_options import ReadingOptions
from dstack.processes.child import Child, Message

if TYPE_CHECKING:
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.model.snapshot import ClusterPoll, Snapshot


LATE_S = 5.0
"""The time beyond the timeout in which the child process starts and hands over the snapshot."""
HANDOVER_S = 1.0
"""The child process stops reading this long before it would be killed, on a slow host longer."""
ALL_OBJECTS = 100_000
"""The maximum number of values in the object store that a snapshot lists if it is about them."""
WHOLE_HISTORY = 100_000
"""The maximum number of attempts of tasks in a history: as many as the GCS keeps by default."""
SAVED_HISTORY = 20_000
"""The same for snapshots that are saved without being asked for a history: about 1 MB in a file."""
TRIES, TRIED_AGAIN_WITHIN_S, PAUSE_S, MAX_PAUSE_S = 4, 5.0, 0.25, 1.0
"""How many snapshots are taken until one is conclusive, how long after the first another may begin, and the first and
longest pause before another, which doubles. While the cluster itself starts, only the timeout limits them."""
LONGER = "Use a longer timeout, or run dstack on a host with more free CPU time."


class Terms(NamedTuple):
    """How to take a snapshot.

    ``options`` and ``watch_s`` are arguments of :func:`dstack.snapshot`. ``history`` is the maximum number of attempts
    of tasks in the snapshot's history, 0 for no history. ``objects`` is the maximum number of values in the object
    store that it lists, the largest ones; None for a few.
    """

    timeout_s: float = 30.0
    options: ReadingOptions = ReadingOptions()
    watch_s: float | None = None
    history: int = 0
    objects: int | None = None

    @property
    def limit_s(self) -> float:
        """The longest time until the snapshot is there."""
        return self.timeout_s + (self.watch_s or 0.0) + LATE_S


class Collector:
    """A live source of snapshots of one cluster: a session, which a child process holds from the first snapshot on.

    ``address`` may be a function, which is called for each snapshot. ``driver`` is the module of dstack's driver on the
    cluster. Another thread can cancel it, even before it is used: it ends the child, even during a snapshot, and takes
    no more. A context manager, which ends the child and all its probes.
    """

    def __init__(
        self,
        address: str | Callable[[], str | None] | None,
        terms: Terms | None = None,
        *,
        driver: str | None = None,
    ) -> None:
        fixed = None if callable(address) else address
        self.name = fixed or os.environ.get("RAY_ADDRESS") or "auto"
        self.is_cancelled = False
        self._address = address if callable(address) else lambda: fixed
        self._terms = terms or Terms()
        self._driver = driver
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._is_busy = False

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Starts the child, which loads while the caller does, so that the first snapshot begins earlier."""
        with self._lock:
            self._child = self._child or Child("dstack.collecting.capture", self._driver)

    def take(
        self,
        progress: Callable[[str], None] | None = None,
        early: Callable[[Snapshot], None] | None = None,
        terms: Terms | None = None,
        *,
        began: float | None = None,
    ) -> Snapshot:
        """Takes a snapshot, at most :data:`LATE_S` after its timeout.

        The limit counts from ``began``, a ``time.monotonic()`` in the past, by default from now. ``progress`` is called
        with a short description of each step, first when the child has been started. ``early`` is called with the first
        sample, if there will be a second one. If the second one times out, the result is the first one with a failure.
        Raises :class:`dstack.DstackError`, also if it was cancelled.
        """
        terms = terms or self._terms
        began = time.monotonic() if began is None else began
        deadline = began + terms.limit_s
        # A command that was slow to begin runs on a slow host, where handing over takes longer.
        request = terms, deadline - HANDOVER_S - (time.monotonic() - began)
        with self._replies("take", request, deadline) as replies:
            return _received(replies, terms, progress or (lambda _: None), early)

    def take_analysed(
        self,
        analyse: Callable[[Snapshot], AnalysedSnapshot],
        progress: Callable[[str], None] | None = None,
        early: Callable[[Snapshot], None] | None = None,
        terms: Terms | None = None,
        *,
        began: float | None = None,
    ) -> AnalysedSnapshot:
        """Takes a snapshot and analyses it, and others within its timeout while it is inconclusive.

        They are only taken if all that is missing was in motion, and not if ``watch_s`` was requested. The result is
        the first conclusive one, else the one with the fewest gaps. Arguments and errors are those of :meth:`take`.
        """
        terms = terms or self._terms
        began = time.monotonic() if began is None else began
        best = last = analyse(self.take(progress, early, terms=terms, began=began))
        first_at = time.monotonic()
        for number in count():
            pause_s, now = min(PAUSE_S * 2**number, MAX_PAUSE_S), time.monotonic()
            left_s = terms.timeout_s - (now - began) - pause_s
            has_tried = number >= TRIES - 1 or now - first_at > TRIED_AGAIN_WITHIN_S
            is_late = left_s < last.snapshot.total_s or (has_tried and not _is_starting(last))
            if is_late or terms.watch_s or not _may_settle(best):
                break
            time.sleep(pause_s)
            try:
                last = analyse(self.take(progress, terms=terms._replace(timeout_s=left_s)))
            except ClusterError:
                if self.is_cancelled:
                    raise
                break
            best = min(best, last, key=_gaps)
        return best

    def poll(self, timeout_s: float, *, with_jobs: bool = False, with_figures: bool = False) -> ClusterPoll:
        """Polls the cluster, which reads no stacks; lists all jobs ``with_jobs``. Raises as :meth:`take`.

        ``with_figures`` reads those of the hosts on which there are workers.
        """
        limit_s = timeout_s + LATE_S
        with self._replies("poll", (timeout_s, with_jobs, with_figures), time.monotonic() + limit_s) as replies:
            try:
                polled: ClusterPoll = replies.receive().value
            except TimeoutError:
                raise ClusterError(f"The poll timed out after {limit_s:g} s.", LONGER) from None
        return polled

    def request_history(self) -> bool:
        """Have further snapshots include the whole history of tasks."""
        self._terms = self._terms._replace(history=WHOLE_HISTORY)
        return True

    def cancel(self) -> None:
        """Ends a running :meth:`take` at once, and makes later ones fail."""
        with self._lock:
            self.is_cancelled = True
            if self._child is not None and self._is_busy:
                self._child.kill()
                return  # what waits for its reply closes it
        self.close()

    def close(self) -> None:
        """Ends the child and its probes; a later :meth:`take` starts new ones."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()

    @contextmanager
    def _replies(self, kind: str, request: tuple[object, ...], deadline: float) -> Iterator[_Replies]:
        """Sends a request to the child, which is ended if it does not complete its reply."""
        address = self._address() or None
        child = self._started()
        replies = _Replies(child, deadline)
        try:
            child.send(kind, (address, *request))
            yield replies
        except (EOFError, BrokenPipeError):
            raise ClusterError("Cancelled.") if self.is_cancelled else _why_ended(child) from None
        finally:
            with self._lock:
                self._is_busy = False
            if not replies.is_complete or self.is_cancelled:
                self.close()

    def _started(self) -> Child:
        """The child; a new one if there is none or it has ended."""
        with self._lock:
            if self.is_cancelled:
                raise ClusterError("Cancelled.")
            if self._child is not None and self._child.returncode is not None:
                self._child.close()
                self._child = None
            if self._child is None:
                self._child = Child("dstack.collecting.capture", self._driver)
            self._is_busy = True
            return self._child


def _gaps(analysed: AnalysedSnapshot) -> int:
    """How much is missing for a verdict; nothing if something is stuck."""
    return 0 if analysed.diagnosis.is_stuck else len(analysed.diagnosis.gaps)


def _may_settle(analysed: AnalysedSnapshot) -> bool:
    """Whether it is inconclusive, and another snapshot may not be."""
    from dstack.analysis.evidence.coverage import may_settle

    return _gaps(analysed) > 0 and may_settle(analysed.diagnosis.gaps)


def _is_starting(analysed: AnalysedSnapshot) -> bool:
    """Whether the cluster itself has not started completely."""
    from dstack.model.diagnosis import HidingFailure

    gaps = analysed.diagnosis.gaps
    return any(isinstance(gap, HidingFailure) and gap.failure.cause == "starting" for gap in gaps)


class _Replies:
    """The replies to one request; ``is_complete`` when no more follow."""

    def __init__(self, child: Child, deadline: float) -> None:
        self._child = child
        self._deadline = deadline
        self.is_complete = False

    def send(self, kind: str, value: object) -> None:
        """Send what the child asks for meanwhile."""
        self._child.send(kind, value)

    def receive(self) -> Message:
        """The next reply; raises what :meth:`Child.receive` raises."""
        try:
            message = self._child.receive(self._deadline)
        except (DstackError, EOFError, TimeoutError) as error:
            self.is_complete = isinstance(error, DstackError)
            raise
        self.is_complete = message.kind in ("snapshot", "poll")
        return message


def _received(
    replies: _Replies,
    terms: Terms,
    progress: Callable[[str], None],
    early: Callable[[Snapshot], None] | None,
) -> Snapshot:
    """The snapshot that the child sends."""
    first: Snapshot | None = None
    step = "starting"
    progress(step)
    from msgspec.structs import replace

    from dstack.analysis.second_sample import plan_readings
    from dstack.files.snapshot_file import loads

    while True:
        try:
            message = replies.receive()
        except TimeoutError:
            if first is None:
                raise ClusterError(
                    f"The snapshot timed out after {terms.limit_s:g} s; the last step was: {step}.", LONGER
                ) from None
            return _without_second_sample(first, terms.limit_s)
        match message.kind:
            case "progress":
                step = message.value
                progress(step)
            case "first":
                first = loads(message.value)
                plan = plan_readings(first)
                replies.send("plan", plan)
                if early is not None and plan.has_second_sample:
                    early(first)
            case "snapshot":
                taken = loads(message.value)
                return replace(taken, samples=(*first.samples, *taken.samples)) if first else taken


def _without_second_sample(first: Snapshot, limit_s: float) -> Snapshot:
    from msgspec.structs import replace

    from dstack.observed.node import Failure

    late = Failure(
        stage="node probe",
        reason=f"the second sample timed out after {limit_s:g} s",
        cause="timeout",
        remedy=LONGER,
        sample=2,
    )
    return replace(first, failures=(*first.failures, late))


def _why_ended(child: Child) -> ClusterError:
    """The error for a child without a result."""
    return ClusterError(
        f"The process that takes snapshots {child.how_ended()}.",
        "Try again. If it happens again, check whether this host is out of memory.",
    )
