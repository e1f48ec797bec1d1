"""Takes snapshots in a child process, which can be killed at any time, even while it is blocked.

The child, :mod:`dstack.collecting.collector_process`, holds a session: it keeps its connection to the cluster, and the
probes there, between requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from dstack.errors import ClusterError
from dstack.processes.child import REAP_S, Message, Messages, end_child, raise_sent, send, start_child

if TYPE_CHECKING:
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.model.snapshot import ClusterPoll, Snapshot


LATE_S = 5.0
"""The time beyond the timeout in which the child process starts and hands over the snapshot."""
HANDOVER_S = 1.0
"""The child process stops reading this long before it would be killed, on a slow host longer."""
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

    ``options`` are the names of the options of :func:`dstack.snapshot` that are on; ``watch_s`` is its argument.
    ``history`` is the maximum number of attempts of tasks in the snapshot's history.
    """

    timeout_s: float = 30.0
    options: Collection[str] = ()
    watch_s: float | None = None
    history: int = 0

    @property
    def limit_s(self) -> float:
        """The longest time until the snapshot is there."""
        return self.timeout_s + (self.watch_s or 0.0) + LATE_S


class Request(TypedDict):
    """A request to the child process, which it must end by ``deadline``, a ``time.monotonic()``.

    That clock is the same in all processes of a host.
    """

    address: str | None
    timeout_s: float
    deadline: float
    watch_s: float | None
    history: int
    options: list[str]


class Collector:
    """A live source of snapshots of one cluster: a session, which a child process holds from the first snapshot on.

    ``address`` may be a function, which is called for each snapshot. The other arguments are those of :class:`Terms`.
    ``history`` may be set between two snapshots. Another thread can cancel it, even before it is used: it ends the
    child, even during a snapshot, and takes no more. A context manager, which ends the child and all its probes.
    """

    def __init__(
        self,
        address: str | Callable[[], str | None] | None,
        timeout_s: float = 30.0,
        options: Collection[str] = (),
        watch_s: float | None = None,
        history: int = 0,
        *,
        driver: str = "",
    ) -> None:
        fixed = None if callable(address) else address
        self.name = fixed or os.environ.get("RAY_ADDRESS") or "auto"
        self.is_cancelled = False
        self.history = history
        self._address = address if callable(address) else lambda: fixed
        self._terms = Terms(timeout_s, options, watch_s)
        self._driver = driver
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_busy = False

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        terms = terms or self._terms._replace(history=self.history)
        with self._replies("take", terms, began) as replies:
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
        terms = terms or self._terms._replace(history=self.history)
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

    def poll(self, timeout_s: float, *, with_jobs: bool = False) -> ClusterPoll:
        """Polls the cluster, which reads no stacks; lists all jobs ``with_jobs``. Raises as :meth:`take`."""
        import msgspec

        from dstack.model.snapshot import ClusterPoll

        terms = Terms(timeout_s, ("with_jobs",) if with_jobs else ())
        with self._replies("poll", terms) as replies:
            try:
                return msgspec.json.decode(replies.receive().payload, type=ClusterPoll)
            except TimeoutError:
                raise ClusterError(f"The poll timed out after {terms.limit_s:g} s.", LONGER) from None

    def request_history(self) -> bool:
        """Have further snapshots include the whole history of tasks."""
        self.history = WHOLE_HISTORY
        return True

    def cancel(self) -> None:
        """Ends a running :meth:`take` at once, and makes later ones fail."""
        with self._lock:
            self.is_cancelled = True
            if self._child is not None and self._is_busy:
                with contextlib.suppress(OSError):
                    self._child.kill()
                return  # what waits for its reply closes it
        self.close()

    def close(self) -> None:
        """Ends the child and its probes; a later :meth:`take` starts new ones."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            end_child(child)

    @contextmanager
    def _replies(self, kind: str, terms: Terms, began: float | None = None) -> Iterator[_Replies]:
        """Sends a request to the child, which is ended if it does not complete its reply.

        A command that was slow to begin runs on a slow host, where handing over takes longer.
        """
        address = self._address()
        now = time.monotonic()
        began = now if began is None else began
        deadline = began + terms.limit_s
        request: Request = {
            "address": address or None,
            "timeout_s": terms.timeout_s,
            "deadline": deadline - HANDOVER_S - (now - began),
            "watch_s": terms.watch_s,
            "history": terms.history,
            "options": list(terms.options),
        }
        child = self._started()
        replies = _Replies(child, deadline)
        try:
            replies.request(kind, request)
            yield replies
        except (EOFError, BrokenPipeError):
            raise ClusterError("Cancelled.") if self.is_cancelled else _why_ended(child) from None
        finally:
            with self._lock:
                self._is_busy = False
            if not replies.is_complete or self.is_cancelled:
                self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        """The child; a new one if there is none or it has ended."""
        with self._lock:
            if self.is_cancelled:
                raise ClusterError("Cancelled.")
            if self._child is not None and self._child.poll() is not None:
                end_child(self._child)
                self._child = None
            if self._child is None:
                self._child = _start(self._driver)
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

    def __init__(self, child: subprocess.Popen[bytes], deadline: float) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._requests, self._messages = child.stdin, Messages(child.stdout)
        self._deadline = deadline
        self.is_complete = False

    def request(self, kind: str, request: Request) -> None:
        """Sends the request. Raises :class:`BrokenPipeError`."""
        send(self._requests, kind, json.dumps(request).encode())

    def receive(self) -> Message:
        """The next reply.

        Raises what the child has raised, :class:`EOFError` if it has ended, :class:`TimeoutError` past the deadline.
        """
        message = self._messages.receive(self._deadline)
        self.is_complete = message.kind in ("snapshot", "poll", "error")
        if message.kind == "error":
            raise_sent(message)
        return message


def _start(driver: str) -> subprocess.Popen[bytes]:
    """Starts the child from a thread that lives as long: a child ends with the thread that has started it."""
    started: Future[subprocess.Popen[bytes]] = Future()

    def run() -> None:
        try:
            child = start_child("dstack.collecting.collector_process", driver, stdin=subprocess.PIPE)
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(child)
        with contextlib.suppress(ChildProcessError):  # another thread has waited for it
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    threading.Thread(target=run, name="dstack-collector", daemon=True).start()
    return started.result()


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
                step = message.payload.decode("utf-8", "replace")
                progress(step)
            case "early":
                first = loads(message.payload)
                if early is not None:
                    early(first)
            case "snapshot":
                taken = loads(message.payload)
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


def _why_ended(child: subprocess.Popen[bytes]) -> ClusterError:
    """The error for a child without a result; it has closed its pipe, so it ends soon."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(REAP_S)
    how = "sent no result" if child.returncode is None else f"exited with code {child.returncode}"
    if child.returncode is not None and child.returncode < 0:
        how = f"was ended by signal {-child.returncode}"
    return ClusterError(
        f"The process that takes snapshots {how}.",
        "Try again. If it happens again, check whether this host is out of memory.",
    )
