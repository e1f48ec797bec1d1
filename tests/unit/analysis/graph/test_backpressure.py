"""A streaming generator under backpressure waits for the executions that can read its values."""

from __future__ import annotations

import pytest

from dstack.analysis.naming.descriptions import describe
from dstack.model.diagnosis import Wait
from dstack.observed.processes import Frame
from tests.unit.scenes import Call, Scene, SceneCoroutine, SceneProcess, groups_of


def stream(scene: Scene, owner: SceneProcess, items: int = 2) -> tuple[Call, SceneProcess]:
    """A generator's task that has given this many values, and its worker, whose stack shows no user code."""
    call, worker = scene.run("stream", by=owner)
    call.becomes(items=items)
    is_inside_ray(worker)
    return call, worker


def is_inside_ray(worker: SceneProcess) -> None:
    worker.threads[0].is_in_ray = True


def wait_of(scene: Scene, worker: SceneProcess) -> Wait | None:
    return scene.graph()[worker.key].wait


def unknown_label(scene: Scene, worker: SceneProcess) -> str:
    ((_, (target,)),) = groups_of(scene.wait_of(worker))
    vertex = scene.graph()[target]
    assert vertex.kind == "unknown"
    return describe(vertex)


def test_a_producer_with_unread_values_waits_for_any_thread_of_its_owner() -> None:
    scene = Scene()
    driver = scene.driver()
    helper = driver.thread("helper", "user")
    _, worker = stream(scene, driver)

    wait = scene.wait_of(worker)

    assert (wait.kind, wait.evidence) == ("backpressure", "inferred")
    assert groups_of(wait) == [(1, [driver.key, helper.key])]


def test_a_consumer_that_waits_behind_its_producer_is_deadlocked() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Source")
    call = scene.call(actor, "stream", by=driver, items=2)
    actor.runs(call)
    is_inside_ray(actor)
    driver.gets(scene.call(actor, "size", by=driver))
    scene.sample().second_sample()

    (finding,) = scene.diagnose().findings

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert {driver.key, actor.key} <= set(finding.members)


def test_a_producer_that_proceeds_between_two_samples_is_not_stuck() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Source")
    call = scene.call(actor, "stream", by=driver, items=2)
    actor.runs(call)
    is_inside_ray(actor)
    driver.gets(scene.call(actor, "size", by=driver))
    scene.sample()
    call.becomes(items=3)
    scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_a_producer_with_a_waiting_consumer_does_not_wait_for_it() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = stream(scene, driver)
    driver.waits(f"{call.task.task_id}04000000")

    assert wait_of(scene, worker) is None


def test_a_producer_without_unread_values_is_not_blocked() -> None:
    scene = Scene()
    _, worker = stream(scene, scene.driver(), items=0)

    assert wait_of(scene, worker) is None


def test_a_producer_that_ran_during_its_reading_is_not_blocked() -> None:
    scene = Scene()
    _, worker = stream(scene, scene.driver())
    worker.threads[0].is_unstable()

    assert wait_of(scene, worker) is None


def test_a_producer_inside_its_own_code_is_not_blocked() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("stream", by=driver)
    call.becomes(items=2)

    assert scene.graph()[worker.key].wait is None


def test_a_sync_actor_reads_a_generator_in_its_running_call() -> None:
    scene = Scene()
    owner = scene.actor("Consumer")
    owner.runs(scene.call(owner, "eat", by=scene.driver()))
    _, worker = stream(scene, owner)

    assert groups_of(scene.wait_of(worker)) == [(1, [owner.key])]


def under_backpressure(consumer: SceneProcess, scene: Scene) -> SceneProcess:
    """A producer under backpressure in an actor, while its consumer waits for another call of that actor."""
    actor = scene.actor("Source", owner_id=consumer.worker_id).works_for()
    actor.runs(scene.call(actor, "stream", by=consumer, items=2))
    is_inside_ray(actor)
    consumer.gets(scene.call(actor, "size", by=consumer))
    return actor


def test_a_consumer_with_a_library_that_could_read_values_may_proceed() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.thread("StreamingExecutor", "ray")
    under_backpressure(driver, scene)

    assert not scene.sample().second_sample().diagnose().is_stuck


def test_threads_of_ray_read_no_values() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.thread("PythonGCThread", "ray").is_in_ray = True
    _, worker = stream(scene, driver)

    assert groups_of(scene.wait_of(worker)) == [(1, [driver.key])]


def async_consumer() -> tuple[Scene, SceneProcess, SceneCoroutine]:
    """An async actor whose only call has begun a stream, and awaits another call of the stream's actor."""
    scene = Scene()
    driver = scene.driver()
    owner = scene.async_actor("Consumer", owner_id=driver.worker_id).works_for()
    eat = scene.call(owner, "eat", by=driver)
    source = scene.actor("Source", owner_id=owner.worker_id).works_for()
    source.runs(scene.call(source, "stream", by=owner, items=2))
    is_inside_ray(source)
    coro = owner.begins(eat).awaits(scene.call(source, "size", by=owner))
    driver.gets(eat)
    return scene, driver, coro


def test_a_coroutine_that_awaits_a_call_behind_its_producer_is_deadlocked() -> None:
    scene, _, coro = async_consumer()

    (finding,) = scene.sample().second_sample().diagnose().findings

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert coro.key in finding.members


def test_a_caller_that_proceeds_may_make_the_actor_read_the_values() -> None:
    scene, driver, _ = async_consumer()
    driver.computes()

    assert not scene.sample().second_sample().diagnose().is_stuck


def test_an_unobserved_consumer_is_unknown() -> None:
    scene = Scene()
    driver = scene.driver()
    _, worker = stream(scene, driver)
    driver.is_unreadable = True

    assert unknown_label(scene, worker) == "consumer of stream"


WAITS_IN_EVENT = Frame(function="wait", file="/usr/lib/python3.11/asyncio/locks.py", line=213, origin="stdlib")


def async_stream(what: str = "asyncio.Event.wait", *frames: Frame) -> tuple[Scene, SceneCoroutine, SceneProcess]:
    """A generator of an async actor that has given two values, and awaits this, in these frames."""
    scene = Scene()
    driver, actor = scene.driver(), scene.async_actor("Source")
    call = scene.call(actor, "stream", by=driver, items=2)
    coro = actor.begins(call).is_in(what)
    coro.frames = lambda: frames or (WAITS_IN_EVENT,)  # type: ignore[method-assign]
    driver.gets(scene.call(actor, "size", by=driver))
    return scene, coro, driver


def test_an_async_generator_under_backpressure_waits_for_its_consumer() -> None:
    scene, coro, driver = async_stream()
    assert (scene.wait_of(coro).kind, groups_of(scene.wait_of(coro))) == ("backpressure", [(1, [driver.key])])


@pytest.mark.parametrize(
    ("what", "frames"),
    [
        ("asyncio.Event.wait", (WAITS_IN_EVENT, Frame(function="stream", file="source.py", line=3))),
        ("asyncio.Queue.get", ()),
    ],
)
def test_an_async_generator_with_its_own_await_does_not_wait_for_its_consumer(
    what: str, frames: tuple[Frame, ...]
) -> None:
    scene, coro, _ = async_stream(what, *frames)
    assert scene.wait_of(coro).kind != "backpressure"
