"""The waits of coroutines, and waits for coroutines."""

from __future__ import annotations

import json
import zlib

import pytest

from dstack.analysis.naming.descriptions import describe, in_words
from dstack.model.vertex_facts import assumption
from dstack.observed.processes import Process
from dstack.probes.node_access.answers import unpacked
from dstack.probes.observations import Assembly
from tests.unit.analysis.graph.coroutine_scenes import async_call, labels
from tests.unit.scenes import SELECT, Scene, SceneCoroutine, SceneProcess, groups_of

# Coroutines as vertices


def test_a_task_that_is_a_coroutine_is_that_coroutine() -> None:
    scene = Scene()
    driver = scene.driver()
    _, coro, call = async_call(scene, by=driver)
    driver.gets(call)

    vertex = scene.graph()[coro.key]

    assert groups_of(scene.wait_of(driver)) == [(1, [coro.key])]
    assert (describe(vertex), vertex.task_id, vertex.wait) == ("Office.work", call.task.task_id, None)
    assert call.key not in scene.graph()


def test_a_task_that_runs_on_the_loop_is_the_loops_thread() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, _ = async_call(scene, by=driver)
    call = scene.call(actor, "report", by=driver)
    actor.running.append(call)
    loop = actor.threads[-1].computes()
    loop.task_id = call.task.task_id
    driver.gets(call)

    assert groups_of(scene.wait_of(driver)) == [(1, [loop.key])]
    assert describe(scene.graph()[loop.key]) == "Office.report"
    assert groups_of(scene.wait_of(coro)) == [(1, [loop.key])]


def test_a_coroutine_that_a_suspended_task_started_is_not_the_task() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, call = async_call(scene, by=driver)
    loop = actor.threads[-1].computes()
    loop.task_id = call.task.task_id
    besides = actor.coroutine(call)

    graph = scene.graph()

    assert graph[loop.key].task_id is None
    assert graph[besides.key].task_id is None
    assert describe(graph[besides.key]) == "asyncio task work of Office.work"
    assert graph[coro.key].task_id == call.task.task_id


def test_a_name_that_the_program_has_set_is_beside_the_function() -> None:
    scene = Scene()
    driver = scene.driver()
    feeder = driver.coroutine().awaits(driver.coroutine())
    feeder.label = "feeder"

    assert describe(scene.graph()[feeder.key]) == 'asyncio task work "feeder" of driver train.py'


def test_library_coroutines_are_vertices_only_if_they_have_waiters() -> None:
    scene = Scene()
    driver = scene.driver()
    idle = driver.coroutine(is_library=True)
    awaited = driver.coroutine(is_library=True)
    owner = driver.coroutine().awaits(awaited)

    graph = scene.graph()

    assert idle.key not in graph
    assert awaited.key in graph
    assert describe(graph[owner.key]) == "asyncio task work of driver train.py"


def test_a_library_coroutine_without_a_user_waiter_is_no_finding() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.coroutine(is_library=True).awaits(scene.run("poll", by=driver)[0])
    scene.sample()

    assert scene.diagnose().findings == ()


def test_a_library_coroutine_with_a_user_waiter_is_in_the_chain() -> None:
    scene = Scene()
    driver = scene.driver()
    call, _ = scene.run("f", by=driver)
    library = driver.coroutine(is_library=True).awaits(call)
    user = driver.coroutine().awaits(library)
    driver.threads[0].awaits(user)

    (finding,) = scene.diagnose().findings

    assert finding.members == tuple(sorted((driver.key, library.key, user.key), key=str))


def test_a_coroutine_that_moved_can_proceed() -> None:
    scene = Scene()
    driver = scene.driver()
    _, coro, call = async_call(scene, by=driver)
    coro.awaits(call).is_unstable()

    assert scene.graph()[coro.key].wait is None


# Tasks of async actors without a coroutine


def test_a_call_that_has_not_begun_waits_for_the_loop() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, _, _ = async_call(scene, by=driver)
    waiting = scene.call(actor, "figures", by=driver)
    actor.running.append(waiting)
    loop = actor.threads[-1].gets(waiting)

    wait = scene.wait_of(waiting)

    assert (wait.kind, wait.evidence, groups_of(wait)) == ("event loop", "exact", [(1, [loop.key])])


def test_a_call_between_two_states_is_not_observed() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, _, _ = async_call(scene, by=driver)
    between = scene.call(actor, "figures", by=driver)
    actor.running.append(between)

    wait = scene.wait_of(between)

    assert labels(scene, wait) == ["next step of Office.figures, which was observed neither suspended nor running"]
    assert scene.graph()[wait.groups[0].targets[0].vertex].unobserved


@pytest.mark.parametrize("is_own", [True, False])
def test_a_call_waits_for_the_loop_of_its_group_where_only_that_is_blocked(is_own: bool) -> None:
    scene = Scene()
    driver = scene.driver()
    actor = scene.async_actor("Server", loops=2)
    actor.coroutines_read, actor.groups = True, {"user": "group1"}
    handle, user = (scene.call(actor, method, by=driver) for method in ("handle", "user"))
    actor.running += [handle, user]
    loop = actor.threads[-1 if is_own else -2].gets(user)
    loop.task_id = handle.task.task_id

    wait = scene.wait_of(user)

    assert (groups_of(wait) == [(1, [loop.key])]) == is_own
    declared = assumption("declared group", "Server.user", "group1")
    assert wait.assumed == ((declared,) if is_own else ())
    assert in_words(declared) == "Server.user runs in the concurrency group group1 of its actor, as declared"
    assert scene.graph()[(wait.proven_groups if is_own else wait.groups)[0].targets[0].vertex].unobserved


# Groups of an await


def test_all_awaited_objects_are_needed() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, _ = async_call(scene, by=driver)
    pool = actor.thread("pool", "user")
    call, _ = scene.run("f", by=actor)
    other = actor.coroutine()
    coro.awaits(call, other, (pool,), others=2, what="asyncio.gather")

    wait = scene.wait_of(coro)

    waker = wait.groups[-1].targets[0].vertex
    assert [needs for needs, _ in groups_of(wait)] == [1, 1, 1, 1]
    assert [targets for _, targets in groups_of(wait)][1:] == [[other.key], [pool.key], [waker]]
    assert str(scene.graph()[waker].waker_of) == "asyncio.gather"
    assert (wait.needed, wait.total) == (5, 5)


@pytest.mark.parametrize("num_returns", [None, 3, 7])
def test_a_need_above_the_number_of_objects_is_all(num_returns: int | None) -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, _ = async_call(scene, by=driver)
    coro.awaits(*(actor.coroutine() for _ in range(3)), count=num_returns)

    assert [needs for needs, _ in groups_of(scene.wait_of(coro))] == [1, 1, 1]


def test_some_of_the_awaited_objects_are_needed() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, _ = async_call(scene, by=driver)
    there, missing = scene.call(actor, "there", by=actor), actor.coroutine()
    actor.has(there)
    others = [actor.coroutine(), actor.coroutine()]
    coro.awaits(there, missing, *others, count=3)

    wait = scene.wait_of(coro)

    assert groups_of(wait) == [(2, [missing.key, *(other.key for other in others)])]
    assert (wait.needed, wait.total) == (3, 4)


@pytest.mark.parametrize(("others", "is_stuck"), [(0, True), (1, True), (2, False), (2**60, False)])
def test_awaited_objects_without_a_known_producer_count_as_available(others: int, is_stuck: bool) -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, call = async_call(scene, by=driver)
    mate = actor.coroutine().awaits(coro)
    coro.awaits(mate, call, others=others, count=2)

    assert (scene.diagnose().verdict == "deadlock") == is_stuck


def test_an_available_value_is_only_being_fetched() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, _ = async_call(scene, by=driver)
    there = scene.call(actor, "there", by=actor)
    actor.has(there)
    coro.awaits(there, count=1)

    assert labels(scene, scene.wait_of(coro)) == ["value that is already available and being fetched"]


def test_a_future_may_be_completed_by_any_of_its_threads() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, call = async_call(scene, by=driver)
    first, second = actor.thread("pool", "user").gets(call), actor.thread("pool", "user").gets(call)
    coro.awaits((first, second), call, count=1)

    (group,) = scene.wait_of(coro).groups
    shared = scene.graph()[group.targets[1].vertex]

    assert shared.wait is not None
    assert groups_of(shared.wait) == [(1, [first.key, second.key])]
    assert scene.diagnose().verdict == "deadlock"


def test_a_future_without_a_known_thread_may_be_completed() -> None:
    scene = Scene()
    driver = scene.driver()
    _, coro, call = async_call(scene, by=driver)
    coro.awaits((), call, count=1)

    assert scene.diagnose().verdict != "deadlock"


@pytest.mark.parametrize("num_returns", [None, 1])
def test_a_coroutine_that_ended_meanwhile_is_unobserved(num_returns: int | None) -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, _ = async_call(scene, by=driver)
    coro.awaits(actor.coroutine(), actor.coroutine(), count=num_returns)
    actor.coros.pop()

    wait = scene.wait_of(coro)

    assert labels(scene, wait)[1] == "coroutine of actor Office 00000000 (pid 3000), which is unreadable"
    assert scene.diagnose().incomplete


def test_an_unreadable_await_is_unobserved() -> None:
    scene = Scene()
    driver = scene.driver()
    _, coro, _ = async_call(scene, by=driver)
    coro.waits_unreadably("its memory moved")

    assert labels(scene, scene.wait_of(coro)) == ["target of await, which is unreadable: its memory moved"]


# The event loop


def test_a_coroutine_also_waits_for_its_blocked_loop() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, _ = async_call(scene, by=driver)
    other = actor.coroutine()
    loop = actor.threads[-1].gets(scene.run("f", by=actor)[0])
    coro.awaits(other)

    assert groups_of(scene.wait_of(coro)) == [(1, [other.key]), (1, [loop.key])]
    assert groups_of(scene.wait_of(other)) == [(1, [loop.key])]
    assert scene.wait_of(other).kind == "event loop"


def test_no_timeout_ends_a_call_while_the_loop_is_blocked() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, call = async_call(scene, by=driver)
    coro.awaits(scene.run("f", by=actor)[0], timeout_s=1.0)
    actor.threads[-1].gets(call)

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "deadlock"
    assert set(diagnosis.findings[0].members) == {coro.key, actor.threads[-1].key}


def test_a_timeout_ends_a_call_on_a_free_loop() -> None:
    scene = Scene()
    driver = scene.driver()
    _, coro, call = async_call(scene, by=driver)
    coro.awaits(call, timeout_s=1.0)

    assert scene.diagnose().verdict != "deadlock"


def test_an_awaited_coroutine_that_runs_on_the_loop_is_no_gap() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, _ = async_call(scene, by=driver)
    coro.awaits(actor.coroutine())
    actor.coros.pop()
    loop = actor.threads[-1].computes()

    assert groups_of(scene.wait_of(coro)) == [(1, [loop.key])]
    assert not scene.diagnose().incomplete


def test_other_awaited_objects_are_needed_after_the_loop() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, call = async_call(scene, by=driver)
    coro.awaits(actor.coroutine(), call)
    actor.coros.pop()
    actor.threads[-1].computes()

    assert scene.diagnose().verdict == "deadlock"


def test_a_coroutine_without_a_known_loop_waits_for_no_loop() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, call = async_call(scene, by=driver)
    coro.loop = None
    actor.threads[-1].gets(call)

    assert scene.graph()[coro.key].wait is None


def running_main(scene: Scene) -> tuple[SceneProcess, SceneCoroutine]:
    """A driver whose main thread runs an event loop, in which its main coroutine sleeps."""
    driver = scene.driver()
    main = driver.coroutine()
    driver.threads[0].awaits(main)
    return driver, main


def test_a_driver_that_runs_an_event_loop_waits_for_its_main_coroutine() -> None:
    scene = Scene()
    driver, main = running_main(scene)
    call, worker = scene.run("f", by=driver)
    main.awaits(call)

    assert groups_of(scene.wait_of(driver)) == [(1, [main.key])]
    assert groups_of(scene.wait_of(main)) == [(1, [worker.key])]


def test_a_driver_that_gets_in_a_coroutine_blocks_its_loop() -> None:
    scene = Scene()
    driver, main = running_main(scene)
    driver.gets(scene.run("f", by=driver)[0])

    assert groups_of(scene.wait_of(main)) == [(1, [driver.key])]


def test_an_idle_loop_of_the_user_is_not_blocked() -> None:
    scene = Scene()
    driver = scene.driver()
    thread = driver.thread("loop", "user").is_in("asyncio event loop")
    thread.leaf = SELECT
    coro = driver.coroutine()
    driver.threads[0].awaits_result(coro)

    assert scene.graph()[coro.key].wait is None
    assert groups_of(scene.wait_of(driver)) == [(1, [coro.key])]


# Other users of calls and coroutines


def test_a_coroutine_may_read_the_values_of_a_generator() -> None:
    scene = Scene()
    driver, main = running_main(scene)
    stream, worker = scene.run("stream", by=driver)
    stream.becomes(items=3)
    worker.threads[0].is_in_ray = True

    assert groups_of(scene.wait_of(worker)) == [(1, [driver.key, main.key])]


def test_a_library_coroutine_may_read_the_values_of_a_generator() -> None:
    scene = Scene()
    driver, _ = running_main(scene)
    driver.coroutine(is_library=True)
    stream, worker = scene.run("stream", by=driver)
    stream.becomes(items=3)
    worker.threads[0].is_in_ray = True

    assert "asyncio task sleep of a library" in labels(scene, scene.wait_of(worker))


@pytest.mark.parametrize("is_awake", [True, False])
def test_a_coroutine_that_can_proceed_may_end_its_actor(is_awake: bool) -> None:
    scene = Scene()
    node = scene.node(CPU=1.0, free={})
    driver = scene.driver()
    actor = scene.async_actor("Holder", node=node)
    assert actor.actor is not None
    scene.becomes(actor.actor, required_resources={"CPU": 1.0}, owner_id=driver.worker_id)
    driver.holds(actor)
    _, creation = scene.pending_actor("Late", by=driver, CPU=1.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")
    coro = actor.coroutine()
    if not is_awake:
        coro.awaits(creation)
    driver.gets(creation)

    assert (scene.diagnose().verdict == "deadlock") != is_awake


def test_the_owner_that_a_coroutine_names_is_known() -> None:
    scene = Scene()
    driver = scene.driver()
    _, coro, _ = async_call(scene, by=driver)
    other = scene.worker()
    lost = scene.task("lost", by=other)
    other.submitted.clear()
    scene.dies(other)
    coro.awaits(lost)

    diagnosis = scene.diagnose()

    assert diagnosis.findings[0].kind == "orphaned"
    assert diagnosis.findings[0].blocked_behind == (coro.key,)


def test_reports_of_nodes_on_coroutines_are_assembled() -> None:
    frames = [{"function": name, "file": "app.py", "line": line, "origin": "user"} for line, name in enumerate("fg", 1)]
    coroutine = {"coroutine_id": "0x1", "name": "Task-1", "stack": 1, "os_thread_id": 7, "task_id": None}
    call = {"site": "await", "frame": 0, "need": {"kind": "awaitables", "refs": ["a"]}}
    coroutine |= {"is_task": False, "still": True, "call": call}
    process = {"pid": 7, "started_at": 1.0, "threads": [], "coroutines": [coroutine], "coroutines_read": True}
    assembly = Assembly()

    result = {
        "host": {},
        "frames": frames,
        "stacks": [[0], [1, 0]],
        "sources": {"app.py": {"2": "await ref"}},
        "processes": {"w": process},
        "failures": [],
        "clock": [1.0, 2.0],
    }
    assembled, _ = assembly.add(["n"], unpacked(zlib.compress(json.dumps(result).encode())), sample=1)

    found: Process = assembled["w"]
    (one,) = found.coroutines
    assert [assembly.frames[i].function for i in assembly.stacks[one.stack]] == ["g", "f"]
    assert one.call is not None
    assert one.call.refs == ("a",)
    assert assembly.sources == {"app.py": {2: "await ref"}}
