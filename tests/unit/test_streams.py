"""A streaming generator under backpressure waits for those who can take its values, and for nobody else."""

from __future__ import annotations

import pytest

from dstack.diagnosis import Wait
from dstack.model import Frame
from tests.unit.scenes import Call, Coro, Proc, Scene, groups_of


def stream(scene: Scene, owner: Proc, items: int = 2) -> tuple[Call, Proc]:
    """A generator's task that has given so many values, and its worker, on which none of its code is seen."""
    call, worker = scene.run("stream", by=owner)
    call.becomes(items=items)
    rest(worker)
    return call, worker


def rest(worker: Proc) -> None:
    worker.strands[0].is_in_ray = True


def wait_of(scene: Scene, worker: Proc) -> Wait | None:
    return scene.graph()[worker.key].wait


def unknown_label(scene: Scene, worker: Proc) -> str:
    ((_, (target,)),) = groups_of(scene.wait_of(worker))
    vertex = scene.graph()[target]
    assert vertex.kind == "unknown"
    return vertex.label


def test_a_producer_whose_values_nobody_takes_waits_for_any_thread_of_its_owner() -> None:
    scene = Scene()
    driver = scene.driver()
    helper = driver.strand("helper", "user")
    _, worker = stream(scene, driver)

    wait = scene.wait_of(worker)

    assert (wait.kind, wait.evidence) == ("backpressure", "inferred")
    assert groups_of(wait) == [(1, [driver.key, helper.key])]


def test_a_consumer_that_waits_for_what_is_behind_its_producer_is_deadlocked() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Source")
    call = scene.call(actor, "stream", by=driver, items=2)
    actor.runs(call)
    rest(actor)
    driver.gets(scene.call(actor, "size", by=driver))
    scene.look().look_again()

    (finding,) = scene.diagnose().findings

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert {driver.key, actor.key} <= set(finding.members)


def test_a_producer_that_goes_on_between_two_looks_is_not_stuck() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Source")
    call = scene.call(actor, "stream", by=driver, items=2)
    actor.runs(call)
    rest(actor)
    driver.gets(scene.call(actor, "size", by=driver))
    scene.look()
    call.becomes(items=3)
    scene.look_again()

    assert scene.diagnose().verdict == "blocked"


def test_a_producer_whose_next_value_is_waited_for_does_not_wait_for_its_consumer() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = stream(scene, driver)
    driver.waits(f"{call.task.task_id}04000000")

    assert wait_of(scene, worker) is None


def test_a_producer_without_values_that_are_kept_is_not_held_up() -> None:
    scene = Scene()
    _, worker = stream(scene, scene.driver(), items=0)

    assert wait_of(scene, worker) is None


def test_a_producer_that_moved_while_it_was_read_is_not_held_up() -> None:
    scene = Scene()
    _, worker = stream(scene, scene.driver())
    worker.strands[0].is_moving()

    assert wait_of(scene, worker) is None


def test_a_producer_inside_its_own_code_is_not_held_up() -> None:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("stream", by=driver)
    call.becomes(items=2)

    assert scene.graph()[worker.key].wait is None


def test_a_sync_actor_that_holds_the_generator_takes_its_values_in_the_call_it_runs() -> None:
    scene = Scene()
    owner = scene.actor("Consumer")
    owner.runs(scene.call(owner, "eat", by=scene.driver()))
    _, worker = stream(scene, owner)

    assert groups_of(scene.wait_of(worker)) == [(1, [owner.key])]


@pytest.mark.parametrize(
    "name", ["AsyncIO Thread: default", "StreamingExecutor", "ThreadPoolExecutor-0_0"], ids=["loop", "library", "pool"]
)
def test_a_consumer_with_other_threads_that_could_take_values_is_unknown(name: str) -> None:
    scene = Scene()
    driver = scene.driver()
    driver.strand(name, "loop" if name.startswith("Async") else "ray")
    _, worker = stream(scene, driver)

    assert unknown_label(scene, worker).startswith("consumer of stream in driver train.py (pid 1000")


def test_rays_own_threads_take_no_values() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.strand("PythonGCThread", "ray")
    _, worker = stream(scene, driver)

    assert groups_of(scene.wait_of(worker)) == [(1, [driver.key])]


def test_an_actor_whose_next_call_could_take_the_values_is_unknown() -> None:
    scene = Scene()
    owner = scene.actor("Consumer")
    owner.strands[0].role = "ray"
    _, worker = stream(scene, owner)

    assert unknown_label(scene, worker).startswith("consumer of stream")


def test_a_consumer_that_was_not_seen_is_unknown() -> None:
    scene = Scene()
    driver = scene.driver()
    _, worker = stream(scene, driver)
    driver.is_unseen = True

    assert unknown_label(scene, worker) == "consumer of stream"


WAITS_IN_EVENT = Frame(function="wait", file="/usr/lib/python3.11/asyncio/locks.py", line=213, origin="stdlib")


def async_stream(what: str = "asyncio.Event.wait", *frames: Frame) -> tuple[Scene, Coro, Proc]:
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
def test_an_async_generator_that_awaits_something_of_its_own_does_not(what: str, frames: tuple[Frame, ...]) -> None:
    scene, coro, _ = async_stream(what, *frames)
    assert scene.wait_of(coro).kind != "backpressure"
