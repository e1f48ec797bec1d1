"""Takes snapshots: looks once at everything, and again at whoever seemed stuck."""

from __future__ import annotations

import time
from collections.abc import Callable

from dstack.analysis.diagnose import diagnose, of_interest
from dstack.errors import UsageError
from dstack.model import Snapshot
from dstack.probes.cluster import ClusterProbe
from dstack.probes.node_readers import Options

FIRST_SHARE = 0.65
"""The part of the time budget that the first sample may use up."""
WATCHED_S = 1.0
WATCHED_SHARE = 0.2
"""What may stand still is left alone for so long between both looks, to see whether it does."""


def snapshot(
    address: str | None = None,
    *,
    timeout_s: float = 30.0,
    native: bool = False,
    locals: bool = False,
    pause: bool = False,
    progress: Callable[[str], None] | None = None,
    early: Callable[[Snapshot], None] | None = None,
) -> Snapshot:
    """What every worker and driver of a cluster does now, seen from outside.

    ``address`` is ``HOST:PORT`` of the GCS, or ``auto`` or None for ``RAY_ADDRESS`` or the cluster on this machine. The
    whole takes at most about ``timeout_s`` seconds and returns what it has by then; what failed is in
    ``Snapshot.failures``. ``native``, ``locals`` and ``pause`` are those of :func:`dstack.snapshot`. ``progress`` gets
    in a few words what is being done; ``early`` gets the first sample, if there will be a second one.

    Raises :class:`dstack.ClusterError` when the cluster cannot be reached, :class:`dstack.UsageError` for bad input.
    """
    if not timeout_s > 0:
        raise UsageError(f"A timeout of {timeout_s:g} s leaves no time to look.", "Give a positive number of seconds.")
    deadline = time.monotonic() + timeout_s
    options = Options(native=native, locals=locals, pause=pause)
    tell = progress or _silent
    with ClusterProbe(address, options, tell) as probe:
        probe.look((deadline - time.monotonic()) * FIRST_SHARE)
        first = probe.snapshot()
        interest = of_interest(first)
        if early and interest.workers:
            early(first)
        left = deadline - time.monotonic()
        probe.ask_times(interest.tasks, left)
        if interest.may_stand_still:
            tell("waiting a moment, to see who moves")
            time.sleep(max(0.0, min(WATCHED_S, left * WATCHED_SHARE)))
        left = deadline - time.monotonic()
        if interest.workers and left > 0:
            probe.look_again(interest.workers, left, with_setups=interest.waits_to_start)
        return probe.snapshot()


def settled_snapshot(
    address: str, *, within_s: float = 15.0, progress: Callable[[str], None] | None = None
) -> Snapshot:
    """The first snapshot in which somebody waits and the same waits stand as a second before, or the last in time.

    For a cluster that was started a moment ago and will hang in a moment.
    """
    deadline = time.monotonic() + within_s
    waits: object = None
    while True:
        taken = snapshot(address, progress=progress)
        diagnosis = diagnose(taken)
        before, waits = waits, {key: vertex.wait for key, vertex in diagnosis.vertices.items()}
        settled = waits == before and diagnosis.verdict != "clear" and not diagnosis.incomplete
        if settled or time.monotonic() > deadline:
            return taken
        time.sleep(1.0)


def _silent(_: str) -> None:
    pass
