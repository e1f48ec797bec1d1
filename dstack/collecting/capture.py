"""Takes snapshots: a first sample of everything, and a second one of the workers that may be stuck.

:func:`main` does so in a process that holds a session for a :class:`dstack.collecting.collector.Collector`. It replies
to ``take`` with ``progress``, the current step, then ``first``, a snapshot with the first sample, to which the parent
sends the ``plan`` of further readings, and ``snapshot``, one without the first sample; to ``poll`` with ``poll``; or to
both with ``error``. So the process begins without loading the analysis, as its parent does meanwhile. Its argument is
the module of dstack's driver, None for the usual one. It ends with its parent.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from msgspec.structs import replace

from dstack.collecting.collector import LONGER, Terms
from dstack.errors import ClusterError, UsageError
from dstack.files.snapshot_file import dumps
from dstack.model.reading_plan import LONGEST_WATCHED_S, OUTLASTING, ReadingPlan
from dstack.model.snapshot import Snapshot
from dstack.probes.cluster import ClusterProbe, poll_cluster
from dstack.probes.node_access.node_readers import ProbeSession
from dstack.processes.child import Parent
from dstack.processes.gc_pause import GcPause

FIRST_SHARE = 0.65
"""The part of the time budget that the first sample may use up."""
WATCHED_S = 1.0
"""How long possibly stuck or polling workers are observed between both samples."""
SETTLED_WITHIN_S = 15.0
WATCHED_SHARE = 0.25
"""The largest part of the remaining time for this."""
READ_EVERY_S = 0.2
MAX_READINGS = 40


def snapshot(address: str | None = None, *, progress: Callable[[str], None] | None = None) -> Snapshot:
    """Takes one snapshot in a session of its own; the arguments are those of :func:`take`."""
    with ProbeSession() as session:
        return take(session, address, Terms(), progress=progress)


def take(
    session: ProbeSession,
    address: str | None,
    terms: Terms,
    *,
    progress: Callable[[str], None] | None = None,
    plan: Callable[[Snapshot], ReadingPlan] | None = None,
) -> Snapshot:
    """Takes a snapshot of all workers and drivers of a cluster, from outside.

    ``address`` is ``HOST:PORT`` of the GCS, or ``auto`` or None for ``RAY_ADDRESS`` or the cluster on this machine.
    ``plan`` decides by the first sample what else to read; by default the analysis does so in this process.

    Raises :class:`dstack.ClusterError` if the cluster is unreachable, :class:`dstack.UsageError` for bad input.
    """
    if not terms.timeout_s > 0:
        raise UsageError(
            f"The timeout is {terms.timeout_s:g} s; it must be positive.", "Give a positive number of seconds."
        )
    deadline = time.monotonic() + terms.timeout_s
    note = progress or (lambda _: None)
    probe = ClusterProbe(session, address, terms.options, note, terms.objects)
    if terms.history:
        probe.ask_history(terms.history, deadline - time.monotonic())
    probe.take_first_sample((deadline - time.monotonic()) * FIRST_SHARE)
    probe.ask_ended_tasks(deadline - time.monotonic())
    interest = (plan or _planned)(probe.snapshot(with_history=False))
    left = deadline - time.monotonic()
    probe.ask_times(interest.tasks, left)
    if interest.waits_for_nodes:
        probe.ask_platform_events(left)
    deadline += _watch(probe, interest, left, terms.watch_s, note)
    left = deadline - time.monotonic()
    if (interest.has_second_sample or terms.watch_s is not None) and left > 0:
        probe.take_second_sample(interest.workers, left, with_setups=interest.waits_to_start, logs_of=interest.logs_of)
    return probe.snapshot()


def _planned(first: Snapshot) -> ReadingPlan:
    from dstack.analysis.second_sample import plan_readings

    return plan_readings(first)


def _watch(
    probe: ClusterProbe, interest: ReadingPlan, left_s: float, watch_s: float | None, note: Callable[[str], None]
) -> float:
    """Observes possibly stuck or polling workers for a while; returns the requested seconds beyond the timeout."""
    if watch_s is None and not (interest.may_be_stalled or interest.pollers):
        return 0.0
    seconds = watch_s if watch_s is not None else _watched_s(interest, left_s)
    note(f"observing progress for {seconds:.1f} s")
    until = time.monotonic() + seconds
    every_s = max(READ_EVERY_S, seconds / MAX_READINGS)
    while interest.pollers and time.monotonic() + every_s < until:
        began = time.monotonic()
        probe.read_quickly(interest.pollers, until - began)
        time.sleep(max(0.0, min(until, began + every_s) - time.monotonic()))
    time.sleep(max(0.0, until - time.monotonic()))
    return watch_s or 0.0


def _watched_s(interest: ReadingPlan, left_s: float) -> float:
    """The time in which the timeouts of polls pass, except those that are too long."""
    most_s = min(LONGEST_WATCHED_S, left_s * WATCHED_SHARE)
    outlasting = (timeout_s * OUTLASTING for timeout_s in interest.timeouts_s)
    return min(most_s, max((WATCHED_S, *(seconds for seconds in outlasting if seconds <= most_s))))


def settled_snapshot(address: str, progress: Callable[[str], None]) -> Snapshot:
    """Takes snapshots until one has waits, and the same ones as the one before; at the latest the last one in time.

    For a cluster that was started a moment ago and will hang in a moment.
    """
    from dstack.analysis.diagnose import diagnose

    deadline = time.monotonic() + SETTLED_WITHIN_S
    waits: object = None
    while True:
        taken = snapshot(address, progress=progress)
        diagnosis = diagnose(taken)
        before, waits = waits, {key: vertex.wait for key, vertex in diagnosis.vertices.items()}
        has_waits = diagnosis.findings or any(wait.does == "waits" for wait in diagnosis.outside)
        settled = waits == before and has_waits and not diagnosis.incomplete
        if settled or time.monotonic() > deadline:
            return taken
        time.sleep(1.0)


class _Server:
    """Answers the requests of a collector, in one session."""

    def __init__(self, parent: Parent, driver: str | None) -> None:
        self._parent = parent
        self.session = ProbeSession(driver)

    def take(self, address: str | None, terms: Terms, deadline: float) -> None:
        """Take a snapshot, which must be there by ``deadline``, a ``time.monotonic()`` of any process of this host."""
        sent = 0

        def plan(first: Snapshot) -> ReadingPlan:
            nonlocal sent
            sent = len(first.samples)
            self._parent.send("first", dumps(first))
            planned: ReadingPlan = self._parent.receive().value
            return planned

        left_s = min(terms.timeout_s, deadline - (terms.watch_s or 0.0) - time.monotonic())
        if left_s <= 0:
            raise ClusterError("The start of dstack took longer than the timeout.", LONGER)
        taken = take(
            self.session,
            address,
            terms._replace(timeout_s=left_s),
            progress=lambda step: self._parent.send("progress", step),
            plan=plan,
        )
        self._parent.send("snapshot", dumps(replace(taken, samples=taken.samples[sent:])))

    def poll(self, address: str | None, timeout_s: float, with_jobs: bool, with_figures: bool) -> None:
        """Poll the cluster."""
        polled = poll_cluster(self.session, address, timeout_s, with_jobs=with_jobs, with_figures=with_figures)
        self._parent.send("poll", polled)


def main(parent: Parent, driver: str | None) -> None:
    """Serves requests until the parent sends no more, as the module's docstring describes."""
    server = _Server(parent, driver)
    gc.freeze()  # loaded modules stay: the garbage collector need not scan them again
    for kind, arguments in parent:
        try:
            with GcPause():
                (server.take if kind == "take" else server.poll)(*arguments)
        except Exception as error:
            parent.send_error(error)
        gc.collect()  # parts of an analysis refer to each other, and may hold a whole sample
    server.session.close()
