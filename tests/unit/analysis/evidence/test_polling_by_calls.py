"""Library controllers that sleep, and heartbeat loops that poll an actor by calls that succeed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from dstack.analysis.evidence.evidence import Evidence
from dstack.analysis.index.process_index import PolledActors
from dstack.model.diagnosis import Diagnosis
from dstack.observed.processes import Frame
from tests.unit.analysis.evidence.polling_scenes import TRAIN_CONTROLLER, is_suspected, nothing, only_finding
from tests.unit.scenes import APP, Call, Scene, SceneCoroutine, SceneProcess

# Coroutines


def controller(
    function: str = "run", *, with_work: bool = True, stuck: bool = True
) -> tuple[Scene, SceneProcess, SceneCoroutine]:
    """An async actor of Ray's library that sleeps, and a task of its own that may need what it holds."""
    scene = Scene()
    driver, actor = scene.driver(), scene.async_actor("Controller")
    call = scene.call(actor, function, by=driver)
    actor.works_for()
    coro = actor.begins(call)
    coro.is_library = True
    coro.outer = (TRAIN_CONTROLLER,)
    driver.gets(call)
    if with_work:
        work = scene.task("work", by=actor)
        worker = scene.worker().works_for().runs(work)
        worker.gets(call) if stuck else worker.computes()
    return scene, actor, coro


def watch(scene: Scene, *procs: SceneProcess, readings: int = 3) -> Diagnosis:
    """Takes both samples of everything, and readings of these processes between them."""
    scene.sample()
    for _ in range(readings):
        scene.read(procs)
    return scene.sample().diagnose()


def test_a_controller_that_sleeps_waits_for_its_own_tasks() -> None:
    scene, actor, coro = controller()

    finding = only_finding(watch(scene, actor))

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert coro.key in finding.members
    assert finding.assumed == ("the loop at controller.py:7 only polls",)


@pytest.mark.parametrize(("with_work", "stuck"), [(True, False), (False, True)])
def test_a_controller_with_no_blocked_tasks_may_proceed(with_work: bool, stuck: bool) -> None:
    scene, actor, _ = controller(with_work=with_work, stuck=stuck)

    assert not is_suspected(watch(scene, actor))


def test_a_controller_at_another_place_may_proceed() -> None:
    scene, actor, coro = controller()
    scene.sample().read([actor]).read([actor])
    coro.outer = (replace(TRAIN_CONTROLLER, line=8),)
    scene.read([actor]).sample()

    assert not is_suspected(scene.diagnose())


@pytest.mark.parametrize("origin", ["user", "library"])
def test_the_reason_of_any_other_sleep_is_not_known(origin: str) -> None:
    scene, actor, coro = controller()
    file = APP if origin == "user" else "/usr/lib/python3/site-packages/engine/core.py"
    coro.outer = (Frame(function="run", file=file, line=7, origin="user" if origin == "user" else "library"),)

    assert not is_suspected(watch(scene, actor))


def test_a_coroutine_at_a_reused_address_is_another_coroutine() -> None:
    scene, actor, coro = controller()
    scene.sample().read([actor]).read([actor])
    coro.label = "Task-99"
    scene.read([actor])
    coro.label = ""
    scene.read([actor]).sample()

    assert not is_suspected(scene.diagnose())


@pytest.mark.parametrize(("sleeps", "is_found"), [(True, True), (False, False)])
def test_a_library_thread_in_other_c_code_is_no_controller(sleeps: bool, is_found: bool) -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Controller")
    call = scene.call(actor, "run", by=driver)
    actor.works_for().runs(call)
    actor.threads[0].leaf, actor.threads[0].is_asleep, actor.threads[0].sleeps = TRAIN_CONTROLLER, True, sleeps
    work = scene.task("work", by=actor)
    scene.worker().works_for().runs(work).gets(call)
    driver.gets(call)

    assert is_suspected(watch(scene, actor)) is is_found


# Polls by calls that succeed


@dataclass
class Heartbeat:
    """A driver polls a buffer for its size; the producer needs the GPU that the driver's other actor holds."""

    scene: Scene
    driver: SceneProcess
    buffer: SceneProcess
    producer: SceneProcess
    size: Call


def heartbeat() -> Heartbeat:
    scene = Scene()
    scene.node(free={}, GPU=1.0)
    driver = scene.driver()
    buffer = scene.actor("Buffer", owner_id=driver.worker_id).works_for().idles()
    holder = scene.actor("Holder", owner_id=driver.worker_id, held={"GPU": 1.0}).works_for().idles()
    size = scene.call(buffer, "size", by=driver)
    driver.submitted.remove(size)
    _task, producer = scene.run("produce", by=driver)
    more = scene.task("more", by=producer, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0})
    producer.works_for().gets(more)
    driver.holds(buffer).holds(holder)
    producer.holds(buffer)
    driver.threads[0].sleeps = driver.threads[0].is_in_loop = True
    scene.repeats(size, by=driver)
    return Heartbeat(scene, driver, buffer, producer, size)


def watched(it: Heartbeat, *changes: Callable[[], object]) -> Diagnosis:
    it.scene.sample()
    for number in range(4):
        if number < len(changes):
            changes[number]()
        it.scene.read([it.driver])
    return it.scene.sample().diagnose()


def test_a_heartbeat_loop_waits_for_the_users_of_the_actor() -> None:
    it = heartbeat()

    finding = only_finding(watched(it))

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert "the loop at app.py:20 only polls" in finding.assumed
    assert {it.driver.key, it.producer.key} <= set(finding.members)


def test_what_it_asks_for_is_known_and_no_call_is_made_up() -> None:
    it = heartbeat()
    watched(it)
    snapshot = it.scene.snapshot()

    poll = Evidence(snapshot).polls[it.driver.key]

    assert isinstance(poll.target, PolledActors)
    assert poll.target.actors == (it.size.task.actor_id,)
    assert [rate.name for rate in poll.target.rates] == [it.size.task.name]
    index = Evidence(snapshot).first
    thread = index.thread(it.driver.worker_id, it.driver.threads[0].tid)
    assert thread is not None
    assert index.call_of(it.driver.worker_id, thread) is None
    assert index.is_waiting(it.driver.worker_id, thread)


def test_a_user_of_the_polled_actor_that_can_proceed_may_end_the_poll() -> None:
    it = heartbeat()
    _, other = it.scene.run("other", by=it.driver)
    other.works_for().holds(it.buffer).computes()

    assert not is_suspected(watched(it))


def test_a_heartbeat_loop_may_be_observed_in_its_call() -> None:
    it = heartbeat()

    def asks() -> None:
        it.driver.gets(it.size)

    assert is_suspected(watched(it, nothing, asks, it.driver.computes))


@pytest.mark.parametrize("place", ["own code", "library"])
def test_a_loop_that_works_between_its_calls_is_no_heartbeat(place: str) -> None:
    it = heartbeat()

    def works() -> None:
        it.driver.threads[0].sleeps = False
        it.driver.threads[0].is_asleep = place == "library"

    def sleeps() -> None:
        it.driver.threads[0].sleeps = it.driver.threads[0].is_in_loop = True

    assert not is_suspected(watched(it, nothing, works, sleeps))


def test_a_loop_that_works_all_the_time_and_reports_it_is_no_heartbeat() -> None:
    it = heartbeat()
    it.driver.threads[0].sleeps = False

    assert not is_suspected(watched(it))


def test_a_heartbeat_loop_that_was_observed_in_another_wait_may_proceed() -> None:
    it = heartbeat()
    other = it.scene.task("other", by=it.driver)

    assert not is_suspected(watched(it, nothing, lambda: it.driver.gets(other), it.driver.computes))


def test_a_heartbeat_loop_that_was_observed_with_another_dependency_may_proceed() -> None:
    it = heartbeat()

    assert not is_suspected(
        watched(it, nothing, lambda: it.driver.is_in("threading.Condition.wait", "0x1"), it.driver.computes)
    )


def test_a_call_that_does_not_end_is_a_wait_and_no_heartbeat() -> None:
    it = heartbeat()
    it.driver.submitted.append(it.size)
    it.buffer.threads[0].role = "task"
    it.buffer.runs(it.size).gets(it.size)
    it.driver.gets(it.size)

    finding = next(one for one in watched(it).findings if one.kind == "deadlock" and it.buffer.key in one.members)

    assert (finding.confirmed, finding.assumed) == (True, ())
    assert it.driver.key in finding.blocked_behind
    assert Evidence(it.scene.snapshot()).polls == {}


@pytest.mark.parametrize("count", [1, 2])
def test_loops_that_are_the_only_users_of_an_actor_wait_for_nothing_in_the_job(count: int) -> None:
    scene = Scene()
    driver = scene.driver()
    tracker = scene.actor("Tracker", owner_id=driver.worker_id).works_for().idles()
    driver.holds(tracker)
    report = scene.call(tracker, "report", by=driver)
    driver.submitted.clear()
    callers = [driver]
    scene.repeats(report, by=driver)
    for _ in range(count - 1):
        task, worker = scene.run("other", by=driver)
        callers.append(worker.works_for().holds(tracker))
        scene.repeats(report, by=task)
    for caller in callers:
        caller.threads[0].sleeps = caller.threads[0].is_in_loop = True

    diagnosis = watch(scene, *callers)

    assert not diagnosis.is_stuck
    assert set(Evidence(scene.snapshot()).polls) == {caller.key for caller in callers}


@pytest.mark.parametrize("asks_first", [True, False])
def test_a_user_that_polls_for_the_end_of_the_loop_is_no_other_user_in_any_order(asks_first: bool) -> None:
    scene = Scene()
    driver = scene.driver()
    tracker = scene.actor("Tracker", owner_id=driver.worker_id).works_for().idles()
    driver.holds(tracker)
    report = scene.call(tracker, "report", by=driver)
    ask, follow = scene.task("ask", by=driver), scene.task("follow", by=driver)
    driver.submitted.remove(report)
    order = (ask, follow) if asks_first else (follow, ask)
    workers = {call.task.name: scene.worker().runs(call).works_for().holds(tracker) for call in order}
    workers["ask"].threads[0].sleeps = workers["ask"].threads[0].is_in_loop = True
    workers["follow"].gets(ask, timeout_s=1.0)
    driver.gets(follow)
    scene.repeats(report, by=ask)

    diagnosis = watch(scene, *workers.values())

    assert set(Evidence(scene.snapshot()).polls) == {worker.key for worker in workers.values()}
    assert not diagnosis.is_stuck


def polled_buffer(timeout_s: float | None = None) -> tuple[Scene, SceneProcess, SceneProcess]:
    """A driver that asks a buffer for its size, and a producer of that buffer which waits for an event."""
    scene = Scene()
    driver, buffer, producer = scene.driver(), scene.actor("Buffer"), scene.actor("Producer")
    buffer.works_for().idles()
    size, produce = scene.call(buffer, "size", by=driver), scene.call(producer, "produce", by=driver)
    driver.submitted.remove(size)
    producer.works_for().runs(produce).is_in("threading.Event.wait", "0x10", timeout_s=timeout_s)
    driver.holds(buffer).holds(producer)
    producer.holds(buffer)
    driver.threads[0].sleeps = driver.threads[0].is_in_loop = True
    scene.repeats(size, by=driver)
    scene.sample()
    for _ in range(4):
        scene.read([driver])
    return scene.sample(), driver, producer


def test_a_polled_actor_is_stalled_where_its_users_wait_without_a_known_waker() -> None:
    scene, driver, producer = polled_buffer()

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "stalled"
    assert {driver.key, producer.key} <= set(diagnosis.findings[0].members)


def test_a_user_of_the_polled_actor_that_waits_with_a_timeout_is_not_stalled() -> None:
    scene, _, _ = polled_buffer(timeout_s=60.0)

    assert scene.diagnose().verdict == "running"
