"""Functions for programs, notebooks and tests that inspect a cluster, also the one that they are part of.

A separate process takes each snapshot. It reads the threads of the caller like those of any other process, blocked or
not. The caller keeps its connection to Ray, its logging and its signal handlers. All functions block until the snapshot
is complete; in async code use ``await asyncio.to_thread(dstack.check)``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any

from dstack.analysis.stacks.profiles import profile_stacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.wait_graph_forms import to_networkx
from dstack.collecting.collector import WHOLE_HISTORY, Collector, Terms
from dstack.collecting.recorder import FOR_EVER_S, new_profile
from dstack.errors import ClusterError, UsageError
from dstack.files.file_output import write_file
from dstack.model.diagnosis import NODES_SETTLE_S, Diagnosis
from dstack.model.profile import Profile, ProfileOptions
from dstack.model.snapshot import Snapshot
from dstack.observed.reading_options import ReadingOptions
from dstack.probes.connection.background import begin
from dstack.probes.connection.own_cluster import connected_cluster, require_no_client
from dstack.report.not_observed import gaps_in_words
from dstack.report.profile_text import print_profile
from dstack.report.rich_text import plain_text
from dstack.report.sampled_files import format_of, sampled_file
from dstack.report.stacks_files import folded
from dstack.report.text import report_text
from dstack.words import SHOWN

__all__ = [
    "DeadlockFound",
    "Profiling",
    "Session",
    "assert_no_deadlock",
    "check",
    "profile",
    "session",
    "snapshot",
    "to_networkx",
]


class DeadlockFound(AssertionError):
    """A deadlock or hang was found. ``str()`` of it is the report; it has the ``snapshot`` and the ``diagnosis``."""

    __module__ = "dstack"

    def __init__(self, report: str, snapshot: Snapshot, diagnosis: Diagnosis) -> None:
        super().__init__(report, snapshot, diagnosis)
        self.report = report
        self.snapshot = snapshot
        self.diagnosis = diagnosis

    def __str__(self) -> str:
        return self.report


class Session:
    """A session with one cluster, see :func:`session`."""

    __module__ = "dstack"

    def __init__(self, address: str | None) -> None:
        self._collector = Collector(lambda: resolved(address))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def snapshot(
        self,
        *,
        timeout_s: float = 30.0,
        native: bool = False,
        locals: bool = False,
        pause: bool = False,
        watch_s: float | None = None,
        history: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> Snapshot:
        """Take a snapshot; arguments and errors are those of :func:`dstack.snapshot`."""
        _require_positive(timeout_s)
        options = ReadingOptions(native=native, locals=locals, pause=pause)
        return self._collector.take(progress, terms=Terms(timeout_s, options, watch_s, WHOLE_HISTORY if history else 0))

    def _analysed(
        self,
        analyse: Callable[[Snapshot], AnalysedSnapshot],
        terms: Terms,
        progress: Callable[[str], None] | None = None,
    ) -> AnalysedSnapshot:
        """A conclusive snapshot, if one of several within the timeout is."""
        _require_positive(terms.timeout_s)
        return self._collector.take_analysed(analyse, progress, terms=terms)

    def check(
        self,
        *,
        job: str | None = None,
        timeout_s: float = 30.0,
        pause: bool = False,
        watch_s: float | None = None,
        nodes_settle_s: float = NODES_SETTLE_S,
        progress: Callable[[str], None] | None = None,
    ) -> Diagnosis:
        """Take a snapshot and return its diagnosis; arguments and errors are those of :func:`dstack.check`."""
        analyse = partial(AnalysedSnapshot.of, job=job, nodes_settle_s=nodes_settle_s)
        terms = Terms(timeout_s, ReadingOptions(pause=pause), watch_s)
        return self._analysed(analyse, terms, progress).diagnosis

    def assert_no_deadlock(
        self, *, job: str | None = None, timeout_s: float = 30.0, complete: bool = False
    ) -> Diagnosis:
        """Raise :class:`DeadlockFound` for a deadlock or a hang; as :func:`dstack.assert_no_deadlock`."""
        analysed = self._analysed(partial(AnalysedSnapshot.of, job=job), Terms(timeout_s))
        diagnosis = analysed.diagnosis
        if diagnosis.is_stuck:
            raise DeadlockFound(report_text(analysed), analysed.snapshot, diagnosis)
        if complete and diagnosis.incomplete:
            reasons = " ".join(gap.text for gap in gaps_in_words(analysed)[:SHOWN])
            raise ClusterError(
                f"Too much was unreadable to exclude a deadlock. {reasons}".rstrip(), "Make these readable."
            )
        return diagnosis

    def close(self) -> None:
        """End the session and its probes; the next snapshot would begin them again."""
        self._collector.close()


def _require_positive(timeout_s: float) -> None:
    if not timeout_s > 0:
        raise UsageError(f"The timeout is {timeout_s:g} s; it must be positive.", "Give a positive number of seconds.")


def session(address: str | None = "auto") -> Session:
    """Open a session for several snapshots of one cluster; a context manager.

        with dstack.session() as session:
            while training:
                session.assert_no_deadlock()

    It keeps the connection to the cluster, and one probe process on each other node, so that only the first snapshot
    has to start them. The probes end with the session, however it ends, and by themselves when they are not used for a
    minute; the next snapshot then starts them again. ``address`` is that of :func:`snapshot`. A session survives the
    loss of nodes and a restart of the GCS, and includes new nodes. Its methods :meth:`Session.snapshot`,
    :meth:`Session.check` and :meth:`Session.assert_no_deadlock` are for one thread at a time.
    """
    return Session(address)


def snapshot(
    address: str | None = "auto",
    *,
    timeout_s: float = 30.0,
    native: bool = False,
    locals: bool = False,
    pause: bool = False,
    watch_s: float | None = None,
    history: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Snapshot:
    """Take a snapshot of all workers and drivers of a cluster, including this process and all its threads.

    ``address`` is ``HOST:PORT`` of the GCS. With ``auto`` or None it is the cluster that this process is connected to,
    else the one of ``RAY_ADDRESS``, else the one that runs on this host. Reading stops after ``timeout_s`` seconds;
    failures are in ``Snapshot.failures``. ``locals`` adds the values of local variables. ``pause`` lets py-spy pause
    running processes for exact stacks of running threads, and asks Ray's agents for the stacks of processes that dstack
    cannot read. ``native`` adds C frames, for which py-spy pauses every process. Without these options no process is
    paused, traced or signalled. ``watch_s`` is how many seconds to observe the cluster for progress between the two
    samples, in addition to ``timeout_s``; by default about one second, and only if needed. ``history`` adds the
    attempts of tasks that the GCS keeps, at most 100,000. ``progress`` is called with a short description of each
    step.

    Raises :class:`dstack.ClusterError` if the cluster is unreachable or nothing was read 5 s after the timeout, and
    :class:`dstack.UsageError` for invalid arguments.
    """
    with session(address) as one:
        return one.snapshot(
            timeout_s=timeout_s,
            native=native,
            locals=locals,
            pause=pause,
            watch_s=watch_s,
            history=history,
            progress=progress,
        )


def check(
    address: str | None = "auto",
    *,
    job: str | None = None,
    timeout_s: float = 30.0,
    pause: bool = False,
    watch_s: float | None = None,
    nodes_settle_s: float = NODES_SETTLE_S,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Take a snapshot and return its diagnosis; arguments and errors are those of :func:`snapshot`.

    With ``job``, the diagnosis has only the findings that involve this job. A job is named by its id, the beginning of
    its id, its submission id, or the script of its driver. What no node has is a hang once no node has joined or left
    for ``nodes_settle_s``, or for five times as long if a lost node had it.
    """
    with session(address) as one:
        return one.check(
            job=job,
            timeout_s=timeout_s,
            pause=pause,
            watch_s=watch_s,
            nodes_settle_s=nodes_settle_s,
            progress=progress,
        )


def assert_no_deadlock(
    address: str | None = "auto", *, job: str | None = None, timeout_s: float = 30.0, complete: bool = False
) -> Diagnosis:
    """Raise :class:`DeadlockFound` where ``dstack check`` exits with 1; arguments are those of :func:`check`.

    It is raised for deadlocks and hangs, also for suspected ones; otherwise the diagnosis is returned. With
    ``complete=True``, a diagnosis that is ``incomplete`` raises :class:`dstack.ClusterError`: too much was unreadable
    to exclude a deadlock.
    """
    with session(address) as one:
        return one.assert_no_deadlock(job=job, timeout_s=timeout_s, complete=complete)


class Profiling:
    """A profile that is being made, see :func:`profile`; its results are there after its ``with`` block."""

    __module__ = "dstack"

    def __init__(self, address: str | None, rate_hz: float, options: ProfileOptions, job: str | None) -> None:
        self._address = address
        self._rate_hz = rate_hz
        self._options = options
        self._job = job
        self._profile: Profile | None = None

    def __enter__(self) -> Profiling:
        job = self._job or os.getpid()
        self._recorder = new_profile(resolved(self._address), FOR_EVER_S, self._rate_hz, self._options, job)
        self._has_begun: Future[None] = Future()
        self._made = begin(self._record)
        either: tuple[Future[Any], ...] = (self._has_begun, self._made)
        wait(either, return_when=FIRST_COMPLETED)
        if self._made.done():
            self._made.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._recorder.stop()
        self._profile = self._made.result()

    def _record(self) -> Profile:
        def note(_: str) -> None:
            if self._recorder.has_begun and not self._has_begun.done():
                self._has_begun.set_result(None)

        return self._recorder.record(note)

    @property
    def profile(self) -> Profile:
        """The profile; raises :class:`dstack.UsageError` within its ``with`` block."""
        if self._profile is None:
            raise UsageError("The profile is not complete yet.", "Use it after its with block.")
        return self._profile

    def top(self) -> str:
        """The heaviest chains, as ``dstack profile`` prints them."""
        return plain_text(lambda console: print_profile(console, self.profile))

    def folded(self) -> str:
        """Folded stacks, weighted by microseconds."""
        return folded(profile_stacks(self.profile)).decode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, in the format that its suffix names, as ``dstack profile -o`` does."""
        write_file(os.fspath(path), sampled_file(self.profile, format_of(os.fspath(path))), force=True)


def profile(
    address: str | None = "auto",
    *,
    rate_hz: float = 5.0,
    of: str = "",
    everything: bool = False,
    last: bool = False,
    job: str | None = None,
) -> Profiling:
    """Profile a cluster during a ``with`` block: where the wall-clock time of a whole job goes.

        with dstack.profile() as profile:
            train()
        print(profile.top())

    In a driver it follows the main thread of this driver; elsewhere those of all drivers, or of one ``job``.
    ``address`` is that of :func:`snapshot`, the other arguments are options of ``dstack profile``. The block begins
    with the first sample, about a second later.

    Raises :class:`dstack.ClusterError` if the cluster is unreachable, and :class:`dstack.UsageError` for invalid
    arguments.
    """
    return Profiling(address, rate_hz, ProfileOptions(of=of, everything=everything, last=last), job)


def resolved(address: str | None) -> str | None:
    """The given address; without one, that of the cluster that this process is connected to, if any."""
    if address not in (None, "", "auto"):
        return address
    require_no_client()
    own = connected_cluster()
    return own.address if own else None
