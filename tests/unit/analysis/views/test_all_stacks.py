"""All stacks in groups: by class, by ranks with equal stacks, by process; of one job, and with weights."""

from __future__ import annotations

import pytest
from hypothesis import given

from dstack.analysis.diagnose import diagnose
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.stacks.stack_tree import TextFilter
from dstack.analysis.stacks.weighted_stacks import WeightedStacks
from dstack.analysis.views.all_stacks import By, ChosenStacks, StackPosition, Stacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.stack_pages import MAX_DEPENDENCIES, StackPage
from dstack.errors import UsageError
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import Key, ThreadKey, UnknownKey
from dstack.observed.node import Failure
from dstack.observed.processes import Frame
from tests.paths import RECORDED_CLUSTERS
from tests.unit.scenes import JOB, Scene
from tests.unit.support.random_snapshots import related_snapshots


def stacks_of(scene: Scene) -> Stacks:
    snapshot = scene.snapshot()
    return Stacks(SampleIndex(snapshot, snapshot.samples[0]), diagnose(snapshot).vertices)


def page(scene: Scene, key: Key) -> StackPage:
    found = stacks_of(scene).pages.page(key)
    assert found is not None
    return found


def test_drivers_come_first_and_idle_workers_last() -> None:
    scene = Scene()
    idle = scene.actor("Idle").idles()
    busy = scene.actor("Busy")
    driver = scene.driver()
    busy.runs(scene.call(busy, "work", by=driver))
    stacks = stacks_of(scene)
    (node,) = stacks.nodes

    assert [worker.worker_id for worker in stacks.workers_on(node)] == [
        driver.worker_id,
        busy.worker_id,
        idle.worker_id,
    ]


def test_a_process_shows_its_threads_apart_from_those_of_ray() -> None:
    scene = Scene()
    actor = scene.actor("Clerk")
    call = scene.call(actor, "stamp", by=scene.driver().gets())
    actor.runs(call)
    actor.thread("listener", "ray").is_in_ray = True

    process_threads = stacks_of(scene).process_threads(actor.worker)

    assert [(thread.name, thread.activity, thread.words) for thread in process_threads.threads] == [
        ("Clerk.stamp", "running", "app.py:10")
    ]
    assert [thread.name for thread in process_threads.others] == ['thread "listener"']
    assert process_threads.trouble == ""


def test_a_thread_shows_its_dependency_in_brief() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    calls = [scene.call(clerk, "stamp", by=driver) for _ in range(3)]
    clerk.runs(calls[0])
    driver.gets(*calls)

    (thread,) = stacks_of(scene).process_threads(driver.worker).threads

    assert thread.activity == "waiting"
    assert thread.words.startswith("ray.get → Clerk.stamp")
    assert thread.words.endswith("(+2 more)")


def test_a_process_without_stacks_says_why() -> None:
    scene = Scene()
    idle = scene.actor("Idle").idles()
    hidden = scene.actor("Hidden")
    hidden.is_unreadable = True
    worker = hidden.worker
    scene.failures.append(Failure(stage="stacks", reason="no ptrace", pid=worker.pid, node_id=worker.node_id))
    stacks = stacks_of(scene)

    assert stacks.process_threads(idle.worker).trouble == "is idle"
    assert stacks.process_threads(hidden.worker).trouble == "was not read: no ptrace"


def test_an_internal_library_execution_is_not_idle() -> None:
    scene = Scene()
    controller = scene.actor("ServeController", name="SERVE_CONTROLLER_ACTOR")
    controller.runs(scene.call(controller, "run_control_loop", by=scene.driver()))

    assert stacks_of(scene).process_threads(controller.worker).trouble == "runs only code of its library"


def test_a_page_links_to_the_producer_of_the_ref_on_another_node() -> None:
    scene = Scene()
    driver = scene.driver(scene.node(CPU=1.0))
    far = scene.node(CPU=1.0)
    call, worker = scene.run("work", by=driver, node=far)
    driver.gets(call)

    first = page(scene, driver.key)
    (dependencies,) = first.dependencies
    then = page(scene, dependencies.keys[0])

    assert (first.call, first.call_at) == ("ray.get", 0)
    assert then.key == worker.key
    assert far.ip in then.place
    assert then.dependencies == ()
    assert stacks_of(scene).pages.path_to(worker.key) == (far.node_id, worker.worker_id, None)


def test_a_pending_task_has_a_page_without_frames_and_with_links() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    running, queued = (scene.call(clerk, "stamp", by=driver) for _ in range(2))
    clerk.runs(running)
    driver.gets(queued)

    then = page(scene, page(scene, driver.key).dependencies[0].keys[0])

    assert then.runs == ()
    assert "is queued behind" in then.sentence
    assert then.dependencies[0].keys == (clerk.key,)


def test_other_frames_are_set_apart_from_user_frames_and_the_call() -> None:
    snapshot = load(RECORDED_CLUSTERS / "serve-deadlock-ray-2.60.json.gz")
    stacks = Stacks(SampleIndex(snapshot, snapshot.samples[0]), diagnose(snapshot).vertices)
    (driver,) = (worker for worker in snapshot.workers if worker.is_driver)

    found = stacks.pages.page(ThreadKey(driver.worker_id, driver.pid))

    assert found
    assert [(run.is_foldable, len(run.frames)) for run in found.runs] == [(False, 1), (True, 6), (False, 1)]
    assert (found.call, found.call_at) == ("DeploymentResponse.result", 0)


def test_a_thread_of_ray_has_a_page_too() -> None:
    scene = Scene()
    actor = scene.actor("Clerk")
    listener = actor.thread("listener", "ray")
    listener.is_in_ray = True

    found = page(scene, ThreadKey(actor.worker_id, listener.tid))

    assert found.name == 'thread "listener"'
    assert found.place.startswith("actor Clerk")
    assert found.runs[0].frames[0][1].function == "main_loop"


def test_an_absent_vertex_has_no_page() -> None:
    stacks = stacks_of(Scene())

    assert stacks.pages.page(ThreadKey("none", 1)) is None
    assert stacks.pages.page(UnknownKey("value", ("none",))) is None
    assert stacks.pages.path_to(UnknownKey("value", ("none",))) is None


def test_of_many_dependencies_some_are_listed_and_the_others_counted() -> None:
    scene = Scene()
    driver = scene.driver()
    calls = [scene.run(f"work{number}", by=driver)[0] for number in range(MAX_DEPENDENCIES + 5)]
    driver.gets(*calls)

    found = page(scene, driver.key)

    assert (len(found.dependencies), found.left_out) == (MAX_DEPENDENCIES, 5)


def test_a_search_matches_processes_and_their_stacks() -> None:
    scene = Scene()
    driver = scene.driver()
    clerks = [scene.actor("Clerk", name=name) for name in ("left", "right")]
    for clerk in clerks:
        clerk.runs(scene.call(clerk, "stamp", by=driver))
    stacks = stacks_of(scene)

    assert stacks.found(TextFilter("driver")) == {driver.worker_id: set()}
    assert stacks.found(TextFilter('CLERK "left"')) == {clerks[0].worker_id: set()}
    assert stacks.found(TextFilter("app.py stamp")) == {clerk.worker_id: {clerk.key} for clerk in clerks}
    assert stacks.found(TextFilter('stamp "right"')) == {clerks[1].worker_id: {clerks[1].key}}
    assert stacks.found(TextFilter("absent")) == {}


@given(related_snapshots())
def test_any_snapshot_has_pages(snapshot: Snapshot) -> None:
    if not snapshot.samples:
        return
    stacks = Stacks(SampleIndex(snapshot, snapshot.samples[0]), diagnose(snapshot).vertices)
    for node in stacks.nodes:
        for worker in stacks.workers_on(node):
            process_threads = stacks.process_threads(worker)
            for thread in (*process_threads.threads, *process_threads.others):
                assert stacks.pages.page(thread.key) is not None
    for key in stacks.vertices:
        assert stacks.pages.page(key) is not None


def test_the_page_of_a_stack_has_an_import_as_one_run_that_keeps_its_frames() -> None:
    scene = Scene()
    driver = scene.driver()
    slow = Frame(function="<module>", file="/venv/lib/python3.11/site-packages/shop/slow.py", line=7, origin="library")
    loads = Frame(function="_find_and_load", file="<frozen importlib._bootstrap>", line=1, origin="stdlib")
    line = Frame(function="main", file="/srv/app/app.py", line=3)
    driver.threads[0].leaf, driver.threads[0].outer = slow, (loads, loads, line)

    own, imported = page(scene, driver.key).runs

    assert (own.imported, own.frames) == (None, ((3, line),))
    assert imported.imported is not None
    assert imported.imported.function == "imports shop.slow"
    assert imported.frames == ((2, loads), (1, loads), (0, slow))


MESH = RECORDED_CLUSTERS / "torch-mesh-ray-2.60.json.gz"
OTHER_JOB = "02000000"


def crowd() -> Scene:
    """Two drivers of two jobs; one waits for three actors of a class, of which one computes and two wait."""
    scene = Scene()
    driver, other = scene.driver(), scene.driver(job_id=OTHER_JOB)
    trainers = [scene.actor("Trainer") for _ in range(3)]
    calls = [scene.call(actor, "step", by=driver) for actor in trainers]
    for actor, call in zip(trainers, calls, strict=True):
        actor.runs(call)
    trainers[0].computes()
    for actor in trainers[1:]:
        actor.is_in("threading.Event.wait", "0x1")
    driver.gets(*calls)
    other.is_in("queue.Queue.get", "0x2")
    return scene


def chosen(scene: Scene, **how: object) -> ChosenStacks:
    return ChosenStacks(AnalysedSnapshot.of(scene.snapshot()).stacks, **how)  # type: ignore[arg-type]


def counts(stacks: ChosenStacks, by: By) -> dict[str, int]:
    return {group.name: len(group.executions) for group in stacks.groups(by)}


def test_classes_with_most_stacks_come_first() -> None:
    found = counts(chosen(crowd()), "class")

    assert next(iter(found.items())) == ("actor Trainer", 3)
    assert sum(found.values()) == 5


def test_a_group_knows_where_its_executions_are() -> None:
    trainers, *_ = ChosenStacks(AnalysedSnapshot.of(load(MESH)).stacks).groups("class")

    assert trainers.positions == [
        (StackPosition("all_reduce of torch.distributed", "/srv/app/mesh.py", 20), 3),
        (StackPosition("Trainer.step", "/srv/app/mesh.py", 19), 1),
    ]


def test_only_the_stacks_of_one_job_are_chosen() -> None:
    scene = crowd()

    mine = chosen(scene, job=JOB)

    assert (len(chosen(scene).executions), len(mine.executions)) == (5, 4)
    assert {one.peer_group.job_id for one in mine.executions} == {JOB}
    assert sum(counts(mine, "process").values()) == 4
    with pytest.raises(UsageError):
        chosen(scene, job="no such job")


def test_ranks_with_equal_stacks_are_one_group_and_those_without_a_rank_the_last() -> None:
    stacks = ChosenStacks(AnalysedSnapshot.of(load(MESH)).stacks)

    assert counts(stacks, "rank") == {"ranks 0-2 of actor Trainer": 3, "rank 3 of actor Trainer": 1, "no rank": 1}
    assert [outlier.words for outlier in stacks.outliers.values()] == [
        "rank 3 is in other code than ranks 0-2 (all of stage=train)"
    ]


def test_each_process_is_a_group() -> None:
    stacks = ChosenStacks(AnalysedSnapshot.of(load(MESH)).stacks)

    found = counts(stacks, "process")
    assert len(found) == 5
    assert all(count == 1 and ", pid " in name for name, count in found.items())


@pytest.mark.parametrize("by", ["class", "rank", "process"])
@pytest.mark.parametrize("whole", [False, True])
def test_weights_are_the_numbers_of_stacks(by: By, whole: bool) -> None:
    stacks = ChosenStacks(AnalysedSnapshot.of(load(MESH)).stacks, whole=whole)

    weighted = stacks.weighted(by)
    assert isinstance(weighted, WeightedStacks)
    assert weighted.weight == len(stacks.executions) == sum(counts(stacks, by).values())
    assert weighted.unit == "executions"
