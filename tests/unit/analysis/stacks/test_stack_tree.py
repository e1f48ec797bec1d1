"""Merged stacks: one prefix tree, the executions of a branch, outliers, and missing workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.diagnose import diagnose
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.stacks.app_threads import Activity, AppExecutions, Execution, PeerGroup, running
from dstack.analysis.stacks.peers import AbsentWorker, Outlier, OutlierIndex, absent_workers, branch_peers, outliers
from dstack.analysis.stacks.stack_tree import Grouping, StackBranch, marks_of, merge
from dstack.files.snapshot_file import load
from dstack.model.profile import PathStep
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import ThreadKey
from dstack.observed.node import Failure
from dstack.observed.processes import Frame
from tests.paths import RECORDED_CLUSTERS
from tests.unit.scenes import RAY_WORKER, Scene, SceneProcess
from tests.unit.support.random_snapshots import related_snapshots

ACTIVITIES: tuple[Activity, ...] = ("waiting", "running", "off CPU")


def execution(number: int, functions: Sequence[str], activity: Activity = "waiting", alike: str = "work") -> Execution:
    path = tuple(PathStep(function, "app.py", 1, function) for function in functions)
    return Execution(
        key=ThreadKey("", number),
        name=f"work {number}",
        kind=f"task {alike}",
        peer_group=PeerGroup(alike, "01000000"),
        node=f"node 10.0.0.{number % 3}",
        job="job 01000000",
        worker_id=f"{number}",
        activity=activity,
        path=path,
    )


def executions() -> st.SearchStrategy[list[Execution]]:
    one = st.tuples(st.lists(st.sampled_from("abc"), max_size=5), st.sampled_from(ACTIVITIES), st.sampled_from("xy"))
    return st.lists(one, max_size=40).map(lambda drawn: [execution(n, *each) for n, each in enumerate(drawn)])


def branches(root: StackBranch) -> list[StackBranch]:
    found = [root]
    for branch in found:
        found += branch.children
    return found


def named(root: StackBranch, *names: str) -> StackBranch:
    """The branch with this path of names."""
    for name in names:
        (root,) = (child for child in root.children if child.place and child.place.name == name)
    return root


def running_in(scene: Scene, *, whole: bool = False) -> AppExecutions:
    snapshot = scene.snapshot()
    return running(SampleIndex(snapshot, snapshot.samples[0]), scene.diagnose().vertices, "whole" if whole else "own")


def lost(scene: Scene) -> tuple[AbsentWorker, ...]:
    snapshot = scene.snapshot()
    return absent_workers(
        SampleIndex(snapshot, snapshot.samples[0]), scene.diagnose().vertices, running_in(scene).executions
    )


def team(size: int, class_name: str = "Trainer") -> tuple[Scene, SceneProcess, list[SceneProcess]]:
    """A driver that waits for actors; all of them compute in the same method."""
    scene = Scene()
    driver = scene.driver()
    actors = [scene.actor(class_name) for _ in range(size)]
    calls = [scene.call(actor, "step", by=driver) for actor in actors]
    for actor, call in zip(actors, calls, strict=True):
        actor.runs(call)
        actor.threads[0].line = 10
    driver.gets(*calls)
    return scene, driver, actors


# The tree


@given(executions())
def test_every_execution_is_in_its_branches_and_in_no_other(all_executions: list[Execution]) -> None:
    root = merge(all_executions)

    assert Counter(root.executions) == Counter(all_executions)
    for branch in branches(root):
        assert all(one.path[: branch.depth] == branch.path for one in branch.executions)
        outside = {one.key for one in all_executions} - {one.key for one in branch.executions}
        assert not any(one.path[: branch.depth] == branch.path for one in all_executions if one.key in outside)


@given(executions())
def test_children_and_ends_are_all_executions_of_a_branch(all_executions: list[Execution]) -> None:
    for branch in branches(merge(all_executions)):
        assert branch.own + sum(child.count for child in branch.children) == branch.count
        assert branch.own == sum(len(one.path) == branch.depth for one in branch.executions)
        assert sum(branch.activity.values()) == branch.count
        counts = [child.count for child in branch.children]
        assert counts == sorted(counts, reverse=True)


@given(executions(), st.sampled_from(("kind", "node", "job")))
def test_groups_are_the_first_level(all_executions: list[Execution], by: Grouping) -> None:
    root = merge(all_executions, by=by)

    assert sum(group.count for group in root.children) == len(all_executions)
    for group in root.children:
        assert group.place
        assert not group.place.is_frame
        assert {getattr(one, str(by)) for one in group.executions} == {group.place.name}


@given(executions())
def test_a_branch_is_found_again_by_its_path(all_executions: list[Execution]) -> None:
    root = merge(all_executions)
    again = merge(reversed(all_executions))

    for branch in branches(root):
        assert again.find(branch.path).path == branch.path


def test_an_absent_path_leads_to_its_last_existing_branch() -> None:
    before, after = merge([execution(1, "abc")]), merge([execution(1, "abd")])

    assert [place.name for place in after.find(before.children[0].children[0].children[0].path).path] == ["a", "b"]


def test_only_matching_executions_are_merged() -> None:
    all_executions = [execution(number, "ab", activity) for number, activity in enumerate(ACTIVITIES)]

    root = merge(all_executions, where=lambda one: one.activity == "running")

    assert [one.activity for one in root.executions] == ["running"]


def test_stacks_of_thousands_of_frames_are_merged() -> None:
    root = merge([execution(number, ["deeper"] * 5_000) for number in range(2)])

    assert len(branches(root)) == 5_001


# Outliers


def test_an_outlier_is_found_where_it_leaves_the_majority() -> None:
    odd = execution(9, ("run", "load"))

    found = outliers([*(execution(number, ("run", "barrier")) for number in range(9)), odd])

    assert found == {odd.key: Outlier(odd, shared=1, most=9, alike=10)}


def test_executions_of_another_kind_are_no_outliers() -> None:
    all_executions = [execution(number, ("run", "barrier")) for number in range(9)]

    assert not outliers([*all_executions, execution(9, ("run", "load"), alike="other")])


def test_two_halves_have_no_outliers() -> None:
    halves = [execution(number, ("run", "left" if number % 2 else "right")) for number in range(10)]

    assert not outliers(halves)


def test_one_of_two_is_no_outlier() -> None:
    assert not outliers([execution(1, "a"), execution(2, "b")])


def test_one_of_three_is_an_outlier() -> None:
    assert set(outliers([execution(1, "a"), execution(2, "a"), execution(3, "b")])) == {ThreadKey("", 3)}


def test_an_execution_behind_the_majority_is_an_outlier() -> None:
    short = execution(9, ("run",))

    assert outliers([*(execution(n, ("run", "barrier")) for n in range(9)), short])[short.key].shared == 1


def test_an_execution_ahead_of_the_majority_is_an_outlier() -> None:
    deep = execution(9, ("run", "load"))

    assert outliers([*(execution(n, ("run",)) for n in range(9)), deep])[deep.key].most == 9


@given(executions())
def test_outliers_are_few_and_leave_a_majority_at_one_place(all_executions: list[Execution]) -> None:
    for odd in outliers(all_executions).values():
        similar = [one for one in all_executions if one.peer_group == odd.execution.peer_group]
        shared = odd.execution.path[: odd.shared]
        assert len(similar) == odd.alike
        assert 2 * odd.most > odd.alike
        together = [one for one in similar if one.path[: odd.shared] == shared]
        on = [one for one in together if one.path[odd.shared : odd.shared + 1] != odd.execution.path[odd.shared :][:1]]
        assert len(on) >= odd.most


@given(executions())
def test_the_outliers_of_a_branch_are_those_of_its_executions(all_executions: list[Execution]) -> None:
    odd = outliers(all_executions)
    root = merge(all_executions, by="kind")
    marked = OutlierIndex(root, odd)

    for branch in branches(root):
        assert marked.within(branch) == [one for one in branch.executions if one.key in odd]


# Executions


def test_a_path_has_the_user_frames_and_the_name_of_the_call() -> None:
    scene, _, actors = team(2)
    actors[0].is_in("threading.Barrier.wait")

    root = merge(running_in(scene).executions, by="kind")

    assert named(root, "actor Trainer", "step", "threading.Barrier.wait").count == 1
    assert named(root, "actor Trainer", "step").count == 2
    assert named(root, "driver train.py", "run", "ray.get").activity == {"waiting": 1}
    assert named(root, "actor Trainer").activity == {"waiting": 1, "running": 1}


def test_an_execution_that_ran_is_in_the_same_branch_as_a_stable_one() -> None:
    scene, _, actors = team(2)
    frame = Frame(function="get", file="/usr/lib/python3/queue.py", line=1, origin="stdlib")
    for actor in actors:
        actor.threads[0].leaf = frame
    actors[0].is_in("queue.Queue.get")

    root = merge(running_in(scene).executions)

    assert named(root, "queue.Queue.get").count == 2


def test_whole_stacks_have_all_frames() -> None:
    scene, _, _ = team(1)

    assert running_in(scene).folded == 0
    assert all(one.path for one in running_in(scene, whole=True).executions)
    assert named(merge(running_in(scene, whole=True).executions, by="kind"), "driver train.py", "run", "ray.get")


def test_idle_threads_are_left_out_and_counted() -> None:
    scene, _, actors = team(2)
    actors[0].thread("listener", "ray").is_in_ray = True
    scene.actor("Trainer").idles()
    pool = scene.worker()
    pool.threads[0].is_in_ray = True

    found = running_in(scene)

    assert {one.kind for one in found.executions} == {"actor Trainer", "driver train.py"}
    assert found.left_out == 3


def test_an_internal_library_execution_is_left_out() -> None:
    scene = Scene()
    controller = scene.actor("ServeController", name="SERVE_CONTROLLER_ACTOR")
    controller.runs(scene.call(controller, "run_control_loop", by=scene.driver()))

    assert [one.kind for one in running_in(scene).executions] == ["driver train.py"]


def test_coroutines_are_executions_and_their_idle_loop_is_none() -> None:
    scene = Scene()
    driver = scene.driver()
    server = scene.async_actor("Server")
    call = scene.call(server, "serve", by=driver)
    server.begins(call).is_in("asyncio.Event.wait")
    driver.gets(call)

    root = merge(running_in(scene).executions, by="kind")

    assert named(root, "actor Server", "serve", "asyncio.Event.wait").count == 1
    assert root.count == 2


def test_the_user_line_that_awaits_keeps_its_name() -> None:
    snapshot = load(RECORDED_CLUSTERS / "serve-coroutines-ray-2.60.json.gz")

    executions = running(SampleIndex(snapshot, snapshot.samples[0]), diagnose(snapshot).vertices).executions

    assert {place.name for one in executions for place in one.path} >= {"Front.order", "Kitchen.cook"}


def test_stacks_without_user_code_begin_at_the_task() -> None:
    scene, _, actors = team(1)
    actors[0].threads[0].leaf = Frame(function="main_loop", file=RAY_WORKER, line=1, origin="ray")

    assert [one.path[0].name for one in running_in(scene).executions if one.kind == "actor Trainer"] == ["main_loop"]


@given(related_snapshots())
def test_any_snapshot_has_a_tree(snapshot: Snapshot) -> None:
    if snapshot.samples:
        index = SampleIndex(snapshot, snapshot.samples[0])
        vertices = diagnose(snapshot).vertices
        found = running(index, vertices)
        root = merge(found.executions, by="kind")
        assert root.count == len(found.executions)
        assert found.left_out >= 0
        absent_workers(index, vertices, found.executions)


# Missing workers


def test_no_worker_is_missing_where_all_were_observed() -> None:
    scene, _, _ = team(3)

    assert lost(scene) == ()


def test_an_idle_actor_of_the_same_class_is_missing() -> None:
    scene, _, _ = team(3)
    idle = scene.actor("Trainer").idles()
    scene.actor("Bystander").idles()

    (only,) = lost(scene)

    assert (only.kind, only.why, only.worker_id) == ("actor Trainer", "idle", idle.worker_id)


def test_an_unobserved_actor_is_missing_with_a_reason() -> None:
    scene, _, actors = team(3)
    actors[1].is_unreadable = True
    worker = actors[1].worker
    scene.failures.append(Failure(stage="process", reason="no permission", pid=worker.pid, node_id=worker.node_id))

    (only,) = lost(scene)

    assert (only.why, only.detail) == ("not read", "was not read: no permission")


def test_a_dead_actor_and_a_pending_actor_are_missing() -> None:
    scene, driver, actors = team(3)
    scene.dies(actors[0], cause="out of memory")
    scene.pending_actor("Trainer", by=driver, GPU=1)

    assert [(one.why, one.detail) for one in lost(scene)] == [
        ("dead", "is dead: out of memory"),
        ("without a process", "has no process: it is PENDING_CREATION"),
    ]


def test_an_unknown_worker_is_missing() -> None:
    scene, _, _ = team(1)
    scene.worker().is_unreadable = True

    (only,) = lost(scene)

    assert (only.kind, only.why) == ("worker", "not read")


def test_a_branch_lists_executions_that_are_here_elsewhere_or_missing() -> None:
    scene, _, actors = team(4)
    for actor in actors[:3]:
        actor.is_in("threading.Barrier.wait")
    scene.actor("Trainer").idles()
    root = merge(running_in(scene).executions)
    barrier = named(root, "step", "threading.Barrier.wait")

    (trainers,) = branch_peers(root, barrier, lost(scene))

    assert (trainers.kind, trainers.here, trainers.all) == ("actor Trainer", 3, 5)
    assert [one.worker_id for one in trainers.elsewhere] == [actors[3].worker_id]
    assert [one.why for one in trainers.absent] == ["idle"]


def test_a_worker_with_many_executions_elsewhere_counts_once() -> None:
    scene = Scene()
    driver = scene.driver()
    busy, other = scene.async_actor("Server"), scene.async_actor("Server")
    for _ in range(3):
        busy.begins(scene.call(busy, "serve", by=driver)).is_in("asyncio.Event.wait")
    other.begins(scene.call(other, "drain", by=driver)).sleeps()
    root = merge(running_in(scene).executions)

    (servers,) = branch_peers(root, named(root, "drain"), lost(scene))

    assert (servers.here, servers.away, len(servers.elsewhere), servers.all) == (1, 1, 3, 2)


def test_imports_are_one_step_below_the_line_that_began_them() -> None:
    scene = Scene()
    driver = scene.driver()
    slow = Frame(function="<module>", file="/venv/lib/python3.11/site-packages/shop/slow.py", line=7, origin="library")
    loads = Frame(function="_find_and_load", file="<frozen importlib._bootstrap>", line=1, origin="stdlib")
    shop = Frame(function="<module>", file="/venv/lib/python3.11/site-packages/shop/__init__.py", line=1, origin="ray")
    line = Frame(function="main", file="/srv/app/app.py", line=3)
    driver.threads[0].leaf, driver.threads[0].outer = slow, (loads, shop, loads, line)

    (folded,), (whole,) = running_in(scene).executions, running_in(scene, whole=True).executions

    assert [(step.name, step.line) for step in folded.path] == [("main", 3), ("imports shop.slow", 7)]
    assert len(whole.path) == 5


def test_siblings_that_read_the_same_are_marked_by_line_or_by_file() -> None:
    at_5, at_9 = PathStep("step", "/srv/a.py", 5, "step"), PathStep("step", "/srv/a.py", 9, "step")
    other = PathStep("step", "/srv/b.py", 5, "step")
    alone = PathStep("load", "/srv/a.py", 1, "load")

    assert marks_of([at_5, at_9, alone, PathStep("node 1"), None]) == {at_5: ":5", at_9: ":9"}
    assert marks_of([at_5, other]) == {at_5: " a.py:5", other: " b.py:5"}
