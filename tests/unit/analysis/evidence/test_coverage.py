"""All counts of observed workers agree, whichever sample has a worker, and if it was read in part."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dstack.analysis.evidence.coverage import coverage_of, gaps_of, may_settle, read_workers
from dstack.analysis.views.inventory import ClusterInventory
from dstack.model.diagnosis import Gap, HidingFailure, NoSample, Ratio, UnknownDependency, UnreadMemory, UnreadWorker
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import TaskKey, UnknownKey
from dstack.observed.node import Cause, Failure
from dstack.report.check_json import check_json
from dstack.report.text import report_text
from dstack.tui.snapshot_sources import NumberedSnapshot
from dstack.tui.views.bars import Status, coverage_line
from dstack.tui.views.stacks_pages import branch_page
from dstack.tui.views.stacks_trees import MergedTree
from tests.unit.scenes import Scene, SceneProcess


def cluster() -> Scene:
    """A driver that waits for a task, and two idle workers; all of them are observed."""
    scene = Scene()
    driver = scene.driver()
    call, _ = scene.run("work", by=driver)
    driver.gets(call)
    scene.worker().idles()
    scene.worker().idles()
    return scene


def whole() -> Snapshot:
    return cluster().sample().sample().snapshot()


def one_just_started() -> Snapshot:
    """A worker that is only in the second sample."""
    scene = cluster().sample()
    scene.worker().idles()
    return scene.sample().snapshot()


def one_just_started_and_unreadable() -> Snapshot:
    scene = cluster().sample()
    scene.worker().is_unreadable = True
    return scene.sample().snapshot()


def one_just_ended() -> Snapshot:
    """A worker that is in the first sample, but no longer in the list of workers."""
    scene = cluster().sample()
    scene.procs.pop()
    return scene.sample().snapshot()


def one_of_a_probe() -> Snapshot:
    """A worker of dstack's own job: it is not listed once its job is known, though both samples may have it."""
    scene = cluster()
    probe = scene.worker().idles()
    snapshot = scene.sample().sample().snapshot()
    return replace(snapshot, workers=tuple(w for w in snapshot.workers if w.worker_id != probe.worker_id))


def one_ended_and_one_unreadable() -> Snapshot:
    """The numbers of observed and listed workers are equal, but the workers differ."""
    scene = cluster()
    scene.worker().is_unreadable = True
    scene.sample()
    scene.procs.pop(-2)
    return scene.sample().snapshot()


def one_unreadable_at_first() -> Snapshot:
    scene = cluster()
    late = scene.worker().idles()
    late.is_unreadable = True
    scene.sample()
    late.is_unreadable = False
    return scene.sample().snapshot()


def one_read_in_two_halves() -> Snapshot:
    """A worker whose threads were read in the first sample only, and its state in the second only."""
    scene = cluster()
    half = scene.worker().idles()
    half.is_unreachable = True
    scene.sample()
    half.is_unreachable, half.is_unreadable = False, True
    return scene.sample().snapshot()


def unobserved(change: Callable[[SceneProcess], None]) -> Callable[[], Snapshot]:
    def make() -> Snapshot:
        scene = cluster()
        change(scene.worker().idles())
        return scene.sample().sample().snapshot()

    return make


def is_unreachable(proc: SceneProcess) -> None:
    proc.is_unreachable = True


def is_unreadable(proc: SceneProcess) -> None:
    proc.is_unreadable = True


def is_both(proc: SceneProcess) -> None:
    proc.is_unreachable = proc.is_unreadable = True


def an_actor_alone() -> Snapshot:
    """An actor whose class has no other observed actor."""
    scene = cluster()
    scene.actor("Lonely").is_unreadable = True
    return scene.sample().sample().snapshot()


def a_coroutine_unread() -> Snapshot:
    """All workers were observed, but one coroutine was not."""
    scene = cluster()
    server = scene.async_actor("Server")
    server.running = [scene.call(server, "serve", by=scene.procs[0])]
    return scene.sample().sample().snapshot()


def a_driver_that_does_nothing() -> Snapshot:
    scene = cluster()
    scene.driver().idles()
    return scene.sample().sample().snapshot()


@pytest.mark.parametrize(
    ("make", "observed", "total"),
    [
        (whole, 4, 4),
        (one_just_started, 5, 5),
        (one_just_started_and_unreadable, 4, 5),
        (one_just_ended, 3, 3),
        (one_of_a_probe, 4, 4),
        (one_ended_and_one_unreadable, 3, 4),
        (one_unreadable_at_first, 5, 5),
        (one_read_in_two_halves, 4, 5),
        (unobserved(is_unreachable), 4, 5),
        (unobserved(is_unreadable), 4, 5),
        (unobserved(is_both), 4, 5),
        (an_actor_alone, 4, 5),
        (a_coroutine_unread, 5, 5),
        (a_driver_that_does_nothing, 5, 5),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_all_counts_agree(make: Callable[[], Snapshot], observed: int, total: int) -> None:
    snapshot = make()
    shown = NumberedSnapshot.of(1, snapshot)

    assert coverage_of(snapshot).workers == Ratio(observed=observed, total=total)
    assert f"observed {observed}/{total} workers" in coverage_line(shown, Status(), snapshot.taken_at).plain
    assert f"Observed: {observed} of {total} workers" in report_text(shown.analysed)
    assert json.loads(check_json(shown.analysed))["coverage"]["workers"] == {"seen": observed, "total": total}

    inventory = ClusterInventory(shown.analysed.merged_index, shown.analysed.diagnosis)
    counts = sum((Counter(inventory.counts(inventory.on_node(node))) for node in inventory.nodes), Counter())
    assert sum(counts.values()) == total
    assert counts["not read"] + sum(map(inventory.partly_read, inventory.nodes)) == total - observed
    workers = [one for node in inventory.nodes for one in inventory.summaries(inventory.on_node(node))]
    assert Counter(one.activity for one in workers) == counts
    assert all(one.trouble for one in workers if one.worker.worker_id not in read_workers(snapshot))

    missing = [one for one in shown.analysed.stacks.absent_workers if one.why == "not read"]
    assert len(missing) == counts["not read"]
    tree = MergedTree.of(shown.analysed.stacks)
    page = " ".join(line.text.plain for line in branch_page(tree, tree.root))
    assert ("not read: may be anywhere" in page) == bool(missing)
    assert bool(list(gaps_of(snapshot, {}))) == (observed < total and make is not one_just_started_and_unreadable)


def test_every_gap_is_reported_with_its_kind() -> None:
    scene = cluster()
    scene.worker().is_unreachable = True
    scene.worker().access = "text stack"
    scene.procs[0].gets("ab" * 24 + "01000000")
    scene.failures.append(Failure(stage="control plane", reason="no answer", cause="timeout"))
    snapshot = scene.sample().snapshot()

    gaps = list(gaps_of(snapshot, scene.diagnose().vertices))

    assert [type(gap) for gap in gaps] == [UnreadWorker, UnreadMemory, HidingFailure, UnknownDependency]
    assert gaps[0] == UnreadWorker(worker_id=scene.procs[-2].worker_id, is_partly_read=True)


def failed(cause: Cause) -> Failure:
    return Failure(stage="process", reason="odd", cause=cause)


@pytest.mark.parametrize(
    ("gap", "may"),
    [
        (UnreadWorker(worker_id="w"), True),
        (UnreadWorker(worker_id="w", failures=(failed("timeout"), failed("ended"))), True),
        (UnreadWorker(worker_id="w", failures=(failed("timeout"), failed("permission"))), False),
        (UnreadWorker(worker_id="w", failures=(failed("unreachable"),)), False),
        (UnreadMemory(worker_id="w", access="py-spy"), False),
        (HidingFailure(failure=failed("timeout")), True),
        (HidingFailure(failure=failed("truncated")), False),
        (UnknownDependency(waiter=TaskKey("a"), target=UnknownKey("step", ("a",))), True),
        (NoSample(), False),
    ],
)
def test_what_is_in_motion_may_settle_and_what_is_not_allowed_may_not(gap: Gap, may: bool) -> None:
    settled = UnknownDependency(waiter=TaskKey("b"), target=UnknownKey("step", ("b",)))

    assert may_settle([gap]) == may
    assert may_settle([settled, gap, settled]) == may
