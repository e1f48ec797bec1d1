"""Deadlocks and stalled chains of coroutines, and look-alikes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.model.snapshot import WorkerSample
from tests.unit.analysis.graph.coroutine_scenes import async_call, texts, twice
from tests.unit.scenes import Call, Scene, SceneCoroutine, SceneProcess, groups_of

# Locks


def test_coroutine_locks_in_two_orders_are_a_suspected_deadlock() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, first, _ = async_call(scene, by=driver)
    _, second, _ = async_call(scene, by=driver, actor=actor)
    first.wants_lock("0x1", second, inferred="async with block")
    second.wants_lock("0x2", first, inferred="async with block")

    diagnosis = twice(scene)

    (finding,) = diagnosis.findings
    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert finding.assumed == ("a lock is held by the coroutine in an async with block of it",)
    assert "Take the locks in the same order in Office.work" in str(finding.advice)


def test_a_semaphore_is_named_as_a_semaphore() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, first, _ = async_call(scene, by=driver)
    _, second, _ = async_call(scene, by=driver, actor=actor)
    first.wants_lock("0x1", second, what="asyncio.Semaphore.acquire", inferred="async with block")
    second.awaits(first)

    diagnosis = twice(scene)

    assert diagnosis.findings[0].assumed == ("a semaphore is held by the coroutine in an async with block of it",)
    assert "waits for a semaphore, held by Office.work" in texts(diagnosis)


def test_a_loop_that_waits_for_a_lock_of_its_coroutine_is_deadlocked() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, holder, first = async_call(scene, by=driver, method="write")
    second = scene.call(actor, "write", by=driver)
    actor.running.append(second)
    loop = actor.threads[-1].wants_lock("0x1", holder, inferred="with block")
    loop.task_id = second.task.task_id
    driver.gets(first, second)

    diagnosis = twice(scene)

    (finding,) = diagnosis.findings
    assert set(finding.members) == {holder.key, loop.key}
    assert finding.blocked_behind == (driver.key,)
    assert finding.assumed == ("a lock is held by the coroutine in a with block of it",)
    assert "to free the event loop" in texts(diagnosis)


def test_any_of_its_holders_may_release_a_lock() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, first, _ = async_call(scene, by=driver)
    _, second, _ = async_call(scene, by=driver, actor=actor)
    helper = actor.thread("helper", "user")
    first.wants_lock("0x1", second, helper)
    second.awaits(first)

    assert groups_of(scene.wait_of(first)) == [(1, [helper.key, second.key])]
    assert scene.diagnose().verdict != "deadlock"


# Deadlocks and look-alikes


def ring(scene: Scene) -> tuple[SceneProcess, SceneCoroutine, SceneCoroutine]:
    """Two async actors, each of which awaits a call of the other that runs."""
    driver = scene.driver()
    left, first, greet = async_call(scene, by=driver)
    _, second, answer = async_call(scene, by=left)
    first.awaits(answer)
    second.awaits(greet)
    driver.gets(greet)
    return driver, first, second


def test_coroutines_that_await_each_other_are_deadlocked() -> None:
    scene = Scene()
    driver, first, second = ring(scene)

    (finding,) = twice(scene).findings

    assert finding.confirmed
    assert set(finding.members) == {first.key, second.key}
    assert finding.blocked_behind == (driver.key,)


def wakes_up(coro: SceneCoroutine) -> None:
    coro.sleeps()


def is_another(coro: SceneCoroutine) -> None:
    coro.number += 7


def moves(coro: SceneCoroutine) -> None:
    coro.is_unstable()


def is_restarted(coro: SceneCoroutine) -> None:
    coro.process.is_restarted()


def has_ended(coro: SceneCoroutine) -> None:
    coro.process.coros.remove(coro)


@pytest.mark.parametrize("change", [wakes_up, is_another, is_restarted, has_ended])
def test_a_coroutine_that_changed_between_two_samples_proceeds(change: Callable[[SceneCoroutine], None]) -> None:
    scene = Scene()
    _, first, _ = ring(scene)
    scene.sample()
    change(first)

    assert scene.second_sample().diagnose().verdict != "deadlock"


def test_an_unstable_coroutine_in_the_second_sample_is_not_confirmed() -> None:
    scene = Scene()
    _, first, _ = ring(scene)
    scene.sample()
    first.is_unstable()

    diagnosis = scene.second_sample().diagnose()

    assert not any(finding.confirmed for finding in diagnosis.findings)


def test_calls_that_await_each_other_s_full_slots_are_deadlocked() -> None:
    scene = Scene()
    driver = scene.driver()
    left, first, greet = async_call(scene, by=driver)
    right, second, answer = async_call(scene, by=left)
    name = scene.call(left, "name", by=right).arrives()
    first.awaits(answer)
    second.awaits(name)
    driver.gets(greet)

    (finding,) = twice(scene).findings

    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert set(finding.members) == {first.key, second.key, name.key}
    assert "Raise max_concurrency of Office to 2" in str(finding.advice)


def test_a_sync_get_in_an_async_method_belongs_to_the_method() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = scene.async_actor("Office")
    report, figures = scene.call(actor, "report", by=driver), scene.call(actor, "figures", by=actor)
    actor.runs(report, figures).coroutines_read = True
    loop = actor.threads[-1].gets(figures)
    loop.task_id = report.task.task_id
    driver.gets(report)

    (finding,) = twice(scene).findings

    assert set(finding.members) == {loop.key, figures.key}
    assert finding.blocked_behind == (driver.key,)
    assert "Await the ObjectRef instead of ray.get in Office.report" in str(finding.advice)


def test_an_actor_that_awaits_a_slow_call_of_its_own_is_only_slow() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, coro, call = async_call(scene, by=driver)
    _, inner, figures = async_call(scene, by=actor, method="figures", actor=actor)
    coro.awaits(figures)
    driver.gets(call)

    diagnosis = twice(scene)

    assert (diagnosis.verdict, diagnosis.incomplete) == ("running", False)
    assert diagnosis.findings[0].final_blockers[0].vertex == inner.key
    assert "is sleeping" in texts(diagnosis)


# Stalled coroutines


def parked_slots(scene: Scene, driver: SceneProcess) -> tuple[SceneProcess, Call]:
    """An async actor whose two slots await an event, and a queued call that would set it."""
    actor = scene.async_actor("Gate")
    for _ in range(2):
        async_call(scene, by=driver, method="enter", actor=actor)[1].is_in("asyncio.Event.wait", "0x1")
    return actor, scene.call(actor, "open", by=driver).arrives()


def test_full_slots_that_all_await_an_event_are_stalled() -> None:
    scene = Scene()
    driver = scene.driver()
    _, call = parked_slots(scene, driver)
    driver.gets(call)

    diagnosis = twice(scene)

    (finding,) = diagnosis.findings
    assert (finding.kind, diagnosis.incomplete) == ("stalled", False)
    assert "Both Gate.enter calls wait in asyncio.Event.wait" in texts(diagnosis)
    assert "Gate.open (actor Gate" in texts(diagnosis)
    assert "max_concurrency" in str(finding.advice)


def test_a_sleeping_user_coroutine_may_be_the_waker() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, call = parked_slots(scene, driver)
    actor.coroutine()
    driver.gets(call)

    assert twice(scene).verdict == "running"


def test_a_library_coroutine_is_not_the_waker() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, call = parked_slots(scene, driver)
    actor.coroutine(is_library=True)
    driver.gets(call)

    assert twice(scene).verdict == "stalled"


def test_the_place_of_a_loop_that_blocks_an_arrival_is_reported() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, _, _ = async_call(scene, by=driver)
    loop = actor.threads[-1].computes()
    driver.gets(scene.call(actor, "ping", by=driver))

    finding = scene.diagnose().findings[0]

    step = next(step for step in finding.explanation if "free slot" in step.text)
    assert step.text.endswith("it is at")
    assert step.line == loop.line


# Ray's queues, whose actor is asynchronous


def queue_scene(timeout_s: float | None) -> Scene:
    """A driver that waits for a consumer, which waits at a Ray queue; further calls are for the queue."""
    scene = Scene()
    driver, consumer = scene.driver(), scene.actor("Consumer")
    queue = scene.async_actor("_QueueActor")
    eat = scene.call(consumer, "eat", by=driver)
    _, coro, get = async_call(scene, by=consumer, method="get", actor=queue)
    coro.is_library = True
    coro.is_in("asyncio.Queue.get", "0x1", timeout_s=timeout_s)
    consumer.runs(eat).gets(get)
    driver.gets(eat)
    return scene


def test_a_queue_without_a_producer_is_stalled() -> None:
    diagnosis = twice(queue_scene(None))

    assert (diagnosis.findings[0].kind, diagnosis.incomplete) == ("stalled", False)
    assert diagnosis.findings[0].summary.startswith("Consumer.eat waits in ray.get at app.py:30")
    assert "waits in asyncio.Queue.get" in texts(diagnosis)


def test_a_queue_that_is_asked_with_a_timeout_is_polled() -> None:
    diagnosis = twice(queue_scene(1.0))

    assert (diagnosis.findings[0].kind, diagnosis.incomplete) == ("polling", False)
    assert "waits in asyncio.Queue.get, timeout 1 s, for an item in the queue" in texts(diagnosis)


def test_a_producer_that_runs_may_fill_the_queue() -> None:
    scene = queue_scene(None)
    producer = scene.actor("Producer")
    producer.runs(scene.call(producer, "cook", by=scene.procs[0])).computes()

    assert twice(scene).verdict == "running"


def test_similar_sleepers_are_named_once() -> None:
    scene = Scene()
    driver = scene.driver()
    actor = scene.async_actor("Dormitory")
    naps = [scene.call(actor, "nap", by=driver) for _ in range(8)]
    for call in naps:
        actor.begins(call).line = 7
    driver.gets(*naps)

    (finding,) = twice(scene).findings

    assert [step.text.partition("; ")[2] for step in finding.explanation] == ["1 waiter depends on it (8 alike)"]


def test_a_cancelled_call_that_continues_is_named_as_cancelled() -> None:
    scene = Scene()
    driver = scene.driver()
    _, _, call = async_call(scene, by=driver)
    driver.gets(call)
    snapshot = scene.sample().second_sample().snapshot()
    samples = tuple(replace(one, workers=tuple(map(_cancelled, one.workers))) for one in snapshot.samples)

    diagnosis = diagnose(replace(snapshot, samples=samples))

    assert "Office.work (coroutine of actor Office" in texts(diagnosis)
    assert "was cancelled but has not ended: it is sleeping" in texts(diagnosis)
    assert "asyncio.CancelledError" in str(diagnosis.findings[0].advice)
    assert "cancelled" not in texts(scene.diagnose())


def _cancelled(worker: WorkerSample) -> WorkerSample:
    process = worker.process
    assert process is not None
    coroutines = tuple(dataclasses.replace(one, cancel_requests=1) for one in process.coroutines)
    return replace(worker, process=dataclasses.replace(process, coroutines=coroutines))
