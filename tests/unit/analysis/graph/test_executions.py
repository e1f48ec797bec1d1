"""The executions of tasks: threads, event loops, and unobserved ones."""

from __future__ import annotations

from dstack.analysis.graph.builder import MANY
from dstack.analysis.naming.descriptions import describe
from tests.unit.analysis.graph.wait_targets import busy_actor, target_of, unobserved_targets
from tests.unit.scenes import Scene, SceneProcess, groups_of


def test_a_task_on_an_unknown_thread_needs_any_of_the_threads() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=2)
    driver.gets(actor.running[0])

    assert groups_of(scene.wait_of(driver)) == [(1, [actor.running[0].key])]
    wait = scene.wait_of(actor.running[0])
    assert groups_of(wait) == [(1, [thread.key for thread in actor.slots])]
    assert wait.evidence == "inferred"


def test_a_task_runs_on_the_thread_with_its_id() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=2)
    actor.tasks_read = True
    driver.gets(actor.running[1])

    assert groups_of(scene.wait_of(driver)) == [(1, [actor.slots[1].key])]
    assert scene.graph()[actor.slots[1].key].task_id == actor.running[1].task.task_id


def test_a_task_without_a_thread_is_unobserved() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver, count=2)
    actor.tasks_read = True
    actor.slots[1].task_id = None
    driver.gets(actor.running[1])

    assert unobserved_targets(scene, scene.wait_of(actor.running[1]))


def test_many_tasks_on_many_threads_keep_the_graph_small() -> None:
    scene = Scene()
    actor = busy_actor(scene, scene.driver(), count=MANY + 1)

    graph = scene.graph()

    (shared,) = {target.vertex for call in actor.running for target in target_of(graph, call.key)}
    assert [target.vertex for target in target_of(graph, shared)] == [thread.key for thread in actor.slots]


def test_a_task_without_python_frames_is_not_on_the_thread_of_another() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    caller, called = (scene.call(actor, "work", by=driver) for _ in range(2))
    actor.runs(caller, called).gets(called)

    assert unobserved_targets(scene, scene.wait_of(called))
    assert scene.diagnose().verdict == "running"


def test_helper_threads_do_not_hide_which_thread_runs_the_task() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_actor(scene, driver)
    actor.thread("helper", "user")
    driver.gets(actor.running[0])

    assert groups_of(scene.wait_of(driver)) == [(1, [actor.key])]


def busy_async_actor(scene: Scene, by: SceneProcess, loops: int = 1) -> SceneProcess:
    actor = scene.async_actor(loops=loops)
    return actor.runs(scene.call(actor, "work", by=by))


def test_a_task_on_an_event_loop_is_unobserved() -> None:
    scene = Scene()
    actor = busy_async_actor(scene, scene.driver())

    (target,) = unobserved_targets(scene, scene.wait_of(actor.running[0]))

    assert describe(target) == "coroutine of Actor.work, which is unreadable"


def test_a_task_on_an_event_loop_waits_for_the_call_that_blocks_the_loop() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_async_actor(scene, driver)
    loop = actor.threads[-1].gets(scene.call(actor, "inner", by=actor))

    wait = scene.wait_of(actor.running[0])

    assert (wait.kind, wait.evidence) == ("event loop", "exact")
    assert groups_of(wait) == [(1, [loop.key])]
    assert describe(scene.graph()[loop.key]) == f"event loop of actor Actor {actor.actor_id[:8]}"


def test_an_actor_that_blocks_its_only_loop_to_wait_for_itself_is_deadlocked() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_async_actor(scene, driver)
    inner = scene.call(actor, "inner", by=actor)
    actor.running.append(inner)
    driver.gets(actor.running[0])
    loop = actor.threads[-1].gets(inner)

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "deadlock"
    assert set(diagnosis.findings[0].members) == {loop.key, inner.key}


def test_calls_wait_for_their_event_loop_that_computes() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = busy_async_actor(scene, driver)
    driver.gets(actor.running[0])
    loop = actor.threads[-1].computes()

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", False)
    assert diagnosis.findings[0].final_blockers[0].vertex == loop.key


def test_a_call_on_one_of_two_loops_is_unobserved_while_one_of_them_is_idle() -> None:
    scene = Scene()
    actor = busy_async_actor(scene, scene.driver(), loops=2)
    actor.threads[-1].gets(scene.call(actor, "inner", by=actor))

    assert unobserved_targets(scene, scene.wait_of(actor.running[0]))


def test_a_task_in_an_unobserved_process_is_unobserved() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("f", by=driver)
    worker.is_unreadable = True
    driver.gets(call)

    (target,) = unobserved_targets(scene, scene.wait_of(call))

    assert describe(target) == "stack of f, which is unreadable"


def test_a_running_task_of_an_unreachable_owner_is_named_by_its_function() -> None:
    scene = Scene()
    driver = scene.driver()
    _, worker = scene.run("work", by=driver)
    driver.is_unreachable = True

    assert describe(scene.graph()[worker.key]) == "work"
