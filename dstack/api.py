"""What programs, notebooks and tests call to look at a cluster, also at the one that they are part of themselves.

Each look is taken by another process. So the caller's own threads are seen like anybody else's, blocked or not, and
nothing of the caller changes: not its connection to Ray, nor its logging, nor its signal handlers. All functions block
for as long as the snapshot takes; in async code use ``await asyncio.to_thread(dstack.check)``.
"""

from __future__ import annotations

from collections.abc import Callable

from dstack.analysis.diagnose import diagnose
from dstack.collector import Collector
from dstack.diagnosis import Diagnosis
from dstack.errors import ClusterError, UsageError
from dstack.model import Snapshot
from dstack.probes.own_cluster import connected_cluster, require_no_client
from dstack.report.text import report_text


class DeadlockFound(AssertionError):
    """Somebody is stuck for good. As text it is the report; the ``snapshot`` and its ``diagnosis`` come with it."""

    __module__ = "dstack"

    def __init__(self, report: str, snapshot: Snapshot, diagnosis: Diagnosis) -> None:
        super().__init__(report, snapshot, diagnosis)
        self.report = report
        self.snapshot = snapshot
        self.diagnosis = diagnosis

    def __str__(self) -> str:
        return self.report


def snapshot(
    address: str | None = "auto",
    *,
    timeout_s: float = 30.0,
    native: bool = False,
    locals: bool = False,
    pause: bool = False,
    watch_s: float | None = None,
    nonblocking: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Snapshot:
    """What every worker and driver of a cluster does now, this process with its own threads among them.

    ``address`` is ``HOST:PORT`` of the GCS. With ``auto`` or None it is the cluster that this process is connected to;
    where it is not connected, that of ``RAY_ADDRESS``, or the one that runs on this machine. The cluster is read for at
    most ``timeout_s`` seconds; what failed by then is in ``Snapshot.failures``. ``locals`` adds the values of locals.
    ``pause`` pauses running processes for exact stacks of running threads, through py-spy, and asks Ray's agents for
    the stacks of processes that dstack cannot read; ``native`` adds C frames, for which py-spy pauses every process.
    Without these no process is paused, traced or signalled: ``nonblocking`` is the default, and the argument is
    accepted without an effect. ``watch_s`` is for how many seconds the cluster is observed between two samples, to see
    what moves, beyond ``timeout_s``; by default about one, and only where it matters. ``progress`` gets in a few words
    what is being done.

    Raises :class:`dstack.ClusterError` when the cluster cannot be reached or nothing was read 5 s after the timeout,
    :class:`dstack.UsageError` for bad input.
    """
    if not timeout_s > 0:
        raise UsageError(f"A timeout of {timeout_s:g} s leaves no time to look.", "Give a positive number of seconds.")
    options = {"native": native, "locals": locals, "pause": pause}
    collector = Collector(resolved(address), timeout_s, [name for name, is_on in options.items() if is_on], watch_s)
    return collector.take(progress or _ignore, _ignore)


def check(
    address: str | None = "auto",
    *,
    job: str | None = None,
    timeout_s: float = 30.0,
    pause: bool = False,
    watch_s: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """The diagnosis of a snapshot taken now; arguments and errors are those of :func:`snapshot`.

    With a ``job``, by its id, the beginning of that, its submission id or its driver's script, only the findings in
    which it takes part.
    """
    taken = snapshot(address, timeout_s=timeout_s, pause=pause, watch_s=watch_s, progress=progress)
    return diagnose(taken, job=job)


def assert_no_deadlock(
    address: str | None = "auto", *, job: str | None = None, timeout_s: float = 30.0, complete: bool = False
) -> Diagnosis:
    """Raises :class:`DeadlockFound` where ``dstack check`` would end with 1; arguments are those of :func:`check`.

    That is a deadlock, or a wait for what can never come, also where it is only suspected. Otherwise it gives the
    diagnosis. One that is ``incomplete`` passes, unless ``complete`` is asked for: then too little seen to say that
    nobody is stuck raises :class:`dstack.ClusterError`.
    """
    taken = snapshot(address, timeout_s=timeout_s)
    diagnosis = diagnose(taken, job=job)
    if diagnosis.is_stuck:
        raise DeadlockFound(report_text(taken, diagnosis), taken, diagnosis)
    if complete and diagnosis.incomplete:
        reasons = " ".join(f"{failure.stage}: {failure.reason}." for failure in diagnosis.coverage.failures[:3])
        raise ClusterError(f"Too little was seen to say that nobody is stuck. {reasons}".rstrip())
    return diagnosis


def resolved(address: str | None) -> str | None:
    """The address to look at: of this process's own cluster, where none is named and there is one."""
    if address not in (None, "", "auto"):
        return address
    require_no_client()
    own = connected_cluster()
    return own.address if own else None


def _ignore(_: object) -> None:
    pass
