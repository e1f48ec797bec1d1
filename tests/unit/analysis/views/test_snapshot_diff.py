"""The difference of two snapshots of one cluster: executions and waits that are new, ended, changed or unknown."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_diff import SnapshotDiff, compare
from dstack.errors import UsageError
from dstack.files.snapshot_file import load
from dstack.model.diagnosis import Since
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key, ThreadKey
from dstack.observed.node import Failure
from tests.paths import RECORDED_CLUSTERS
from tests.unit.analysis.test_recorded_snapshots import ALL
from tests.unit.scenes import TAKEN_AT, Scene, SceneProcess, SceneThread
from tests.unit.simulations.tasks import ClusterScene, SimulatedCluster, task_clusters
from tests.unit.support.random_snapshots import related_snapshots

LATER_S = 60.0


def analysed(snapshot: Snapshot) -> AnalysedSnapshot:
    return AnalysedSnapshot.of(snapshot)


def again(scene: Scene, later_s: float = LATER_S) -> Snapshot:
    """A snapshot of the present scene, this much later."""
    scene.samples.clear()
    return replace(scene.sample().second_sample().snapshot(), taken_at=TAKEN_AT + later_s)


def diff_after(scene: Scene, change: Callable[[], object] = lambda: None) -> SnapshotDiff:
    """The difference of two snapshots of a scene, before and after a change."""
    before = analysed(again(scene, 0.0))
    change()
    return compare(before, analysed(again(scene)))


def changes(comparison: SnapshotDiff) -> dict[Key, set[str]]:
    """The change of each execution, by its vertex."""
    found: dict[Key, set[str]] = {}
    for moved in comparison.executions:
        found.setdefault(moved.vertex, set()).add(moved.change)
    return found


def waits(comparison: SnapshotDiff) -> dict[Key, set[str]]:
    """The change of each wait, by its vertex."""
    found: dict[Key, set[str]] = {}
    for wait in comparison.waits:
        found.setdefault(wait.vertex, set()).add(wait.change)
    return found


def has_not_changed(comparison: SnapshotDiff) -> bool:
    by_vertex = (*changes(comparison).values(), *waits(comparison).values())
    kept = {change for found in by_vertex for change in found} <= {"stayed", "not known"}
    return kept and {found.change for found in comparison.findings} <= {"stayed"}


class Pair(Scene):
    """A driver that waits for a task that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.driver_ = self.driver()
        self.call_, self.worker_ = self.run("work", by=self.driver_)
        self.driver_.gets(self.call_)


@given(related_snapshots())
def test_a_snapshot_differs_in_nothing_from_itself(snapshot: Snapshot) -> None:
    one = analysed(snapshot)

    comparison = compare(one, one)

    assert has_not_changed(comparison)
    assert comparison.new_workers == comparison.gone_workers == comparison.new_nodes == comparison.gone_nodes == ()
    assert len(comparison.findings) == len(one.diagnosis.findings)


@pytest.mark.parametrize("name", ALL)
def test_a_recorded_snapshot_differs_in_nothing_from_itself(name: str) -> None:
    one = analysed(load(RECORDED_CLUSTERS / name))

    comparison = compare(one, one)

    assert has_not_changed(comparison)
    assert len(comparison.executions) == sum(
        vertex.worker_id is not None and vertex.kind in ("execution", "task")
        for vertex in one.diagnosis.vertices.values()
    )


@given(task_clusters(exact=True), st.integers(0, 6), st.randoms(use_true_random=False))
def test_both_directions_agree(cluster: SimulatedCluster, steps: int, order: random.Random) -> None:
    shown = ClusterScene(cluster)
    before = again(shown.scene, 0.0)
    cluster.run(order, steps)
    shown.update()
    after = again(shown.scene)

    there = compare(analysed(before), analysed(after))
    back = compare(analysed(replace(before, taken_at=TAKEN_AT + 2 * LATER_S)), analysed(after))

    turned = {"new": "gone", "gone": "new"}
    expected = {key: {turned.get(one, one) for one in found} for key, found in changes(there).items()}
    assert changes(back) == expected
    assert {key: {turned.get(one, one) for one in found} for key, found in waits(there).items()} == waits(back)


@given(task_clusters(exact=True), st.integers(1, 6), st.randoms(use_true_random=False))
def test_an_execution_that_ended_does_not_stay(cluster: SimulatedCluster, steps: int, order: random.Random) -> None:
    shown = ClusterScene(cluster)
    before = again(shown.scene, 0.0)
    running = {number for number, work in enumerate(cluster.works) if work.phase == "runs"}
    keys = {number: key for key, number in shown.work_numbers().items() if isinstance(key, ThreadKey)}
    cluster.run(order, steps)
    shown.update()

    found = changes(compare(analysed(before), analysed(again(shown.scene))))

    for number in running:
        if cluster.works[number].phase == "ended":
            assert not found.get(keys[number], set()) & {"stayed", "moved"}


def test_an_execution_at_another_line_has_moved() -> None:
    scene = Pair()

    comparison = diff_after(scene, lambda: setattr(scene.worker_.threads[0], "line", 99))

    assert changes(comparison) == {scene.driver_.key: {"stayed"}, scene.worker_.key: {"moved"}}
    (moved,) = (one for one in comparison.executions if one.change == "moved")
    assert moved.before
    assert moved.after
    assert (moved.before.line, moved.after.line) != (99, 99)
    assert moved.after.line == 99


def test_another_attempt_of_a_task_is_another_execution() -> None:
    scene = Pair()

    comparison = diff_after(scene, lambda: scene.call_.becomes(attempt=1))

    assert changes(comparison)[scene.worker_.key] == {"gone", "new"}


def test_another_process_of_the_same_worker_is_another_execution() -> None:
    scene = Pair()

    comparison = diff_after(scene, scene.worker_.is_restarted)

    assert changes(comparison)[scene.worker_.key] == {"gone", "new"}


def test_another_task_on_the_same_thread_is_another_execution() -> None:
    scene = Pair()
    other = scene.task("other", by=scene.driver_)

    comparison = diff_after(scene, lambda: scene.worker_.runs(other))

    assert changes(comparison)[scene.worker_.key] == {"gone", "new"}


def test_a_task_that_ended_has_disappeared_with_the_wait_for_it() -> None:
    scene = Pair()

    def ends() -> None:
        scene.worker_.idles()
        scene.driver_.submitted.clear()
        scene.driver_.has(scene.call_).computes()

    comparison = diff_after(scene, ends)

    assert changes(comparison) == {scene.driver_.key: {"moved"}, scene.worker_.key: {"gone"}}
    assert waits(comparison) == {scene.driver_.key: {"gone"}}
    assert [found.change for found in comparison.findings] == ["gone"]


def test_a_worker_that_is_no_longer_listed_has_disappeared() -> None:
    scene = Pair()

    comparison = diff_after(scene, lambda: scene.dies(scene.worker_))

    assert changes(comparison)[scene.worker_.key] == {"gone"}
    assert comparison.gone_workers == (scene.worker_.worker_id,)
    assert comparison.new_workers == ()


def test_no_worker_has_disappeared_without_a_list_of_all_workers() -> None:
    scene = Pair()

    def loses() -> None:
        scene.dies(scene.worker_)
        scene.failures.append(Failure(stage="control plane", reason="the GCS did not answer"))

    comparison = diff_after(scene, loses)

    assert changes(comparison)[scene.worker_.key] == {"not known"}
    assert comparison.gone_workers == ()


@pytest.mark.parametrize("how", ["is_unreadable", "has_no_stacks"])
def test_the_change_of_an_unobserved_worker_is_unknown(how: str) -> None:
    scene = Pair()

    comparison = diff_after(scene, lambda: setattr(scene.driver_, how, True))

    assert changes(comparison)[scene.driver_.key] == {"not known"}
    assert waits(comparison)[scene.driver_.key] == {"not known"}


def test_a_finding_has_ended_only_where_its_waits_were_observed() -> None:
    scene = Pair()
    before = analysed(again(scene, 0.0))
    blind = replace(again(scene), samples=())

    comparison = compare(before, analysed(blind))

    assert [found.change for found in comparison.findings] == ["not known"]
    assert {wait.change for wait in comparison.waits} == {"not known"}


def test_a_worker_that_did_not_answer_may_still_run_its_task() -> None:
    scene = Pair()

    def becomes_unreachable() -> None:
        scene.worker_.is_unreachable = True

    assert changes(diff_after(scene, becomes_unreachable))[scene.worker_.key] == {"not known"}


def test_the_change_of_unread_coroutines_is_unknown() -> None:
    scene = Scene()
    driver, server = scene.driver(), scene.async_actor("Server")
    coro = server.begins(scene.call(server, "serve", by=driver))

    def is_not_read() -> None:
        server.coros, server.coroutines_read = [], False

    assert changes(diff_after(scene, is_not_read))[coro.key] == {"not known"}


def test_another_coroutine_at_the_same_address_is_another_execution() -> None:
    scene = Scene()
    driver, server = scene.driver(), scene.async_actor("Server")
    coro = server.begins(scene.call(server, "serve", by=driver))
    before = analysed(again(scene, 0.0))
    snapshot = again(scene)
    renamed = snapshot
    for number, sample in enumerate(snapshot.samples):
        workers = tuple(
            replace(
                one,
                process=dataclasses.replace(
                    one.process, coroutines=tuple(dataclasses.replace(c, name="x") for c in one.process.coroutines)
                ),
            )
            if one.process
            else one
            for one in sample.workers
        )
        samples = (*renamed.samples[:number], replace(sample, workers=workers), *renamed.samples[number + 1 :])
        renamed = replace(renamed, samples=samples)

    assert changes(compare(before, analysed(renamed)))[coro.key] == {"gone", "new"}


def test_a_wait_for_the_same_value_has_lasted_from_the_one_to_the_other() -> None:
    scene = Pair()

    (wait,) = diff_after(scene).waits

    assert (wait.change, wait.kind, wait.may_have_ended) == ("stayed", "ray.get", False)
    assert wait.since == Since(at_least_s=LATER_S - 0.5)


def test_a_wait_adds_what_it_had_lasted_before() -> None:
    scene = Scene()
    driver, left, right = scene.driver(), scene.actor("Left"), scene.actor("Right")
    ping, pong = scene.call(left, "ping", by=driver), scene.call(right, "pong", by=left)
    back = scene.call(left, "back", by=right)
    driver.gets(ping)
    left.runs(ping).gets(pong)
    right.runs(pong).gets(back)

    comparison = diff_after(scene)

    waits_of = {wait.vertex: wait for wait in comparison.waits}
    assert set(waits_of) >= {left.key, right.key, driver.key, back.key}
    assert {wait.since for wait in waits_of.values()} == {Since(at_least_s=LATER_S - 0.5)}
    assert [(found.change, found.before, found.after) for found in comparison.findings] == [("stayed", 0, 0)]


@pytest.mark.parametrize(
    "blocked",
    [
        lambda thread: thread.is_in("threading.Condition.wait", "0x1"),
        lambda thread: thread.wants_lock("0x1"),
        lambda thread: thread.gets(thread.process.puts(-1), timeout_s=1.0),
    ],
)
def test_a_wait_that_may_have_ended_and_restarted_has_no_duration(
    blocked: Callable[[SceneThread], SceneThread],
) -> None:
    scene = Pair()
    blocked(scene.worker_.threads[0])

    (wait,) = (one for one in diff_after(scene).waits if one.vertex == scene.worker_.key)

    assert (wait.change, wait.may_have_ended) == ("stayed", True)
    assert wait.since is None or (wait.since.at_least_s or 0.0) < 1.0


def test_a_wait_for_another_value_is_another_wait() -> None:
    scene = Pair()
    other, _ = scene.run("other", by=scene.driver_)

    comparison = diff_after(scene, lambda: scene.driver_.gets(other))

    assert waits(comparison) == {scene.driver_.key: {"gone", "new"}}


def test_a_queued_call_was_queued_between_the_snapshots() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    first, second = (scene.call(clerk, "stamp", by=driver) for _ in range(2))
    clerk.runs(first)

    (wait,) = diff_after(scene).waits

    assert (wait.vertex, wait.change) == (second.key, "stayed")
    assert wait.since
    assert wait.since.at_least_s == LATER_S - 0.5


def test_a_call_that_began_to_run_is_no_longer_queued() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    first, second = (scene.call(clerk, "stamp", by=driver) for _ in range(2))
    clerk.runs(first)

    def begins() -> None:
        driver.submitted.remove(first)
        clerk.runs(second)

    comparison = diff_after(scene, begins)

    assert waits(comparison) == {second.key: {"gone"}}
    assert changes(comparison)[clerk.key] == {"gone", "new"}


def test_the_change_of_calls_of_an_unreachable_owner_is_unknown() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    first, second = (scene.call(clerk, "stamp", by=driver) for _ in range(2))
    clerk.runs(first)

    def becomes_unreachable() -> None:
        driver.is_unreachable = True

    assert waits(diff_after(scene, becomes_unreachable))[second.key] == {"not known"}


def test_the_order_of_the_snapshots_does_not_matter() -> None:
    scene = Pair()
    before = analysed(again(scene, 0.0))
    scene.worker_.threads[0].line = 99
    after = analysed(again(scene))

    assert compare(after, before) == compare(before, after)


def test_snapshots_of_different_clusters_are_rejected() -> None:
    one = again(Pair())
    other = replace(
        one,
        address="10.9.9.9:6379",
        nodes=tuple(replace(node, node_id="ab" * 28) for node in one.nodes),
        workers=tuple(replace(worker, worker_id="cd" * 28) for worker in one.workers),
    )

    with pytest.raises(UsageError, match=r"different clusters \(10.0.0.1:6379 and 10.9.9.9:6379\)"):
        compare(analysed(one), analysed(other))


def crowd(size: int) -> tuple[Scene, list[SceneProcess]]:
    scene = Scene()
    driver = scene.driver()
    procs = [scene.run("work", by=driver)[1] for _ in range(size)]
    driver.gets(*driver.submitted)
    return scene, procs


def test_similar_changes_have_the_same_shape() -> None:
    scene, procs = crowd(5)
    for proc in procs:
        proc.threads[0].line = 1

    def move() -> None:
        for proc in procs[1:]:
            proc.threads[0].line = 2

    shapes = [moved.shape for moved in diff_after(scene, move).executions if moved.vertex != scene.procs[0].key]

    assert sorted(shapes.count(shape) for shape in set(shapes)) == [1, 4]
