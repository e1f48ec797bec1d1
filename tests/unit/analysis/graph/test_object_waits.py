"""The dependencies of a wait on an object of its own process: the code that can reach the object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from dstack.analysis.graph.object_waits import NO_OTHERS
from dstack.analysis.graph.users import IDLE
from dstack.analysis.naming.descriptions import in_words
from dstack.model.diagnosis import Diagnosis, Finding
from dstack.observed.processes import Frame
from tests.unit.scenes import Call, Scene, SceneCoroutine, SceneProcess, SceneThread

CONDITION = "threading.Condition.wait"
QUEUE = "queue.Queue.get"
IDLE_LIBRARY = Frame(function="run", file="/usr/lib/python3/site-packages/ray/data/executor.py", line=4, origin="ray")


@dataclass
class Linked:
    """A method waits in a condition that a helper thread reaches, which gets a call of the same actor in vain."""

    scene: Scene
    driver: SceneProcess
    actor: SceneProcess
    helper: SceneThread
    again: Call

    def diagnose(self) -> Diagnosis:
        return self.scene.sample().sample().diagnose()


def linked_wait(timeout_s: float | None = None) -> Linked:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Gate")
    call = scene.call(actor, "enter", by=driver)
    actor.works_for().runs(call)
    helper = actor.thread("scheduler", "user")
    again = scene.call(actor, "again", by=actor)
    helper.gets(again)
    actor.is_in(CONDITION, "0x1", timeout_s=timeout_s).is_reached_by(helper)
    driver.gets(call)
    return Linked(scene, driver, actor, helper, again)


def only_finding(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    return finding


# Threads and coroutines


def test_a_wait_for_a_thread_that_waits_for_its_task_is_a_suspected_deadlock() -> None:
    it = linked_wait()

    diagnosis = it.diagnose()

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, finding.kind, finding.confirmed) == ("deadlock", "deadlock", False)
    assert finding.assumed == (in_words(NO_OTHERS),)
    assert set(finding.members) == {it.actor.key, it.helper.key, it.again.key}
    assert finding.blocked_behind == (it.driver.key,)


def test_a_wait_on_an_unreachable_object_has_an_unknown_waker() -> None:
    it = linked_wait()
    it.actor.is_in(CONDITION, "0x1")

    diagnosis = it.diagnose()

    assert not diagnosis.is_stuck
    assert it.scene.wait_of(it.actor).assumed == ()


def test_a_thread_that_can_proceed_may_end_the_wait() -> None:
    it = linked_wait()
    it.helper.computes()

    assert not it.diagnose().is_stuck


def test_one_of_several_threads_that_can_proceed_is_enough() -> None:
    it = linked_wait()
    other = it.actor.thread("other", "user").gets(it.again)
    it.actor.is_in(CONDITION, "0x1").is_reached_by(it.helper, other)
    assert it.diagnose().is_stuck

    it.scene.samples.clear()
    other.computes()

    assert not it.diagnose().is_stuck


def test_a_thread_that_can_proceed_may_reach_the_object() -> None:
    it = linked_wait()
    it.actor.thread("other", "user").computes()

    assert not it.diagnose().is_stuck


def test_a_process_that_can_call_the_actor_may_end_the_wait() -> None:
    it = linked_wait()
    task, worker = it.scene.run("other", by=it.driver)
    worker.holds(it.actor).gets(it.driver.submitted[0])
    assert it.diagnose().is_stuck

    it.scene.samples.clear()
    worker.computes()

    assert not it.diagnose().is_stuck
    assert task in it.driver.submitted


def test_a_partly_observed_actor_may_end_the_wait() -> None:
    it = linked_wait()
    worker = it.scene.worker()
    worker.is_unreachable = True
    worker.holds(it.actor)

    assert not it.diagnose().is_stuck


def test_coroutines_reach_objects_as_threads_do() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.async_actor("Queue")
    get, fill = (scene.call(actor, name, by=driver) for name in ("get", "fill"))
    filler = actor.begins(fill).awaits(get)
    getter = actor.begins(get).is_in("asyncio.Queue.get", "0x1").is_reached_by(filler)
    driver.gets(get, fill)

    finding = only_finding(scene.sample().sample().diagnose())

    assert (finding.confirmed, finding.assumed) == (False, (in_words(NO_OTHERS),))
    assert set(finding.members) == {getter.key, filler.key}
    scene.samples.clear()
    filler.sleeps()
    assert not scene.diagnose().is_stuck


def test_a_library_thread_that_reaches_an_object_takes_part() -> None:
    it = linked_wait()
    it.helper.role = "ray"

    assert set(only_finding(it.diagnose()).members) == {it.actor.key, it.helper.key, it.again.key}


def test_a_thread_does_not_wait_for_itself() -> None:
    it = linked_wait()

    targets = [target.vertex for group in it.scene.wait_of(it.actor).groups for target in group.targets]

    assert it.actor.key not in targets
    assert it.helper.key in targets


# Objects of the actor's instance


def gate(slots: int = 2) -> tuple[Scene, SceneProcess, SceneProcess, Call]:
    """An actor whose slots are full of calls that wait in a condition; the call that ends them is queued."""
    scene = Scene()
    driver = scene.driver()
    actor = scene.threaded_actor(slots, "Gate", owner_id=driver.worker_id)
    actor.works_for().runs(*(scene.call(actor, "enter", by=driver) for _ in range(slots)))
    actor.tasks_read = True
    for thread in actor.slots:
        thread.is_in(CONDITION, "0x1").is_reached_by(actor=True)
    release = scene.call(actor, "release", by=driver).arrives()
    driver.gets(release)
    return scene, driver, actor, release


def test_full_slots_that_wait_for_a_queued_call_are_a_suspected_deadlock() -> None:
    scene, driver, actor, release = gate()

    finding = only_finding(scene.sample().sample().diagnose())

    assert (finding.kind, finding.confirmed, finding.assumed) == ("deadlock", False, (in_words(NO_OTHERS),))
    assert {*(thread.key for thread in actor.slots), release.key} <= {*finding.members, *finding.blocked_behind}
    assert driver.key in {*finding.members, *finding.blocked_behind}


def test_a_driver_that_can_proceed_may_call_the_actor() -> None:
    scene, driver, _, _ = gate()
    driver.computes()

    assert not scene.sample().sample().diagnose().is_stuck


def test_a_free_slot_lets_the_call_begin() -> None:
    scene, _, actor, _ = gate()
    actor.slots[0].computes()

    assert not scene.sample().sample().diagnose().is_stuck


def test_without_a_pending_call_the_waker_is_unknown() -> None:
    scene, driver, _, release = gate()
    driver.submitted.remove(release)
    driver.gets(driver.submitted[0])

    assert scene.sample().sample().diagnose().verdict != "deadlock"


def test_a_repeated_call_may_end_a_wait_for_the_instance() -> None:
    scene, driver, actor, _ = gate()
    size = scene.call(actor, "size", by=driver)
    driver.submitted.remove(size)
    scene.repeats(size, by="ab" * 24)

    assert not scene.sample().sample().diagnose().is_stuck


def test_a_repeated_call_does_not_reach_objects_of_threads() -> None:
    it = linked_wait()
    size = it.scene.call(it.actor, "size", by=it.driver)
    it.driver.submitted.remove(size)
    it.scene.repeats(size, by="ab" * 24)

    assert it.diagnose().is_stuck


# Waits with timeouts


def watch(scene: Scene, *procs: SceneProcess, readings: int = 3) -> Diagnosis:
    scene.sample()
    for _ in range(readings):
        scene.read(procs)
    return scene.sample().diagnose()


def test_a_timeout_ends_a_linked_wait() -> None:
    assert not linked_wait(timeout_s=1.0).diagnose().is_stuck


def test_a_linked_wait_that_only_polls_has_both_assumptions() -> None:
    it = linked_wait(timeout_s=1.0)

    finding = only_finding(watch(it.scene, it.actor))

    assert (finding.confirmed, finding.assumed) == (False, ("the loop at app.py:30 only polls", in_words(NO_OTHERS)))


@pytest.mark.parametrize(
    ("num_returns", "is_polled", "is_stuck"), [(2, True, False), (2, False, True), (1, True, False)]
)
def test_a_polled_wait_on_several_refs_needs_any_of_them(num_returns: int, is_polled: bool, is_stuck: bool) -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Poller")
    actor.works_for().runs(scene.call(actor, "run", by=driver))
    again = scene.call(actor, "again", by=actor)
    other, worker = scene.run("other", by=actor)
    worker.works_for().computes()
    actor.waits(again, other, num_returns=num_returns, timeout_s=1.0 if is_polled else None)
    driver.gets(driver.submitted[0])

    assert watch(scene, actor).is_stuck is is_stuck

    scene.samples.clear()
    scene.readings.clear()
    worker.gets(again)
    assert watch(scene, actor).is_stuck


# Idle library code


@dataclass
class Holder:
    """A task needs the GPU that an idle actor holds, in whose process there is a thread of a library."""

    scene: Scene
    driver: SceneProcess
    actor: SceneProcess
    thread: SceneThread

    def watch(self, change: Callable[[SceneThread], object] | None = None) -> Diagnosis:
        self.scene.sample().read([self.actor])
        if change:
            change(self.thread)
        self.scene.read([self.actor])
        self.thread.is_asleep, self.thread.is_torn, self.thread.leaf = True, False, IDLE_LIBRARY
        return self.scene.read([self.actor]).sample().diagnose()


def holder() -> Holder:
    scene = Scene()
    scene.node(free={}, GPU=1.0)
    driver = scene.driver()
    actor = scene.actor("Trainer", owner_id=driver.worker_id, held={"GPU": 1.0}).works_for().idles()
    thread = actor.thread("engine", "ray")
    thread.leaf, thread.is_asleep = IDLE_LIBRARY, True
    wanting = scene.task("wanting", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 1.0})
    driver.holds(actor).gets(wanting)
    return Holder(scene, driver, actor, thread)


def test_idle_library_code_is_assumed_to_stay_idle_which_is_no_proof() -> None:
    it = holder()

    finding = only_finding(it.watch())

    assert (finding.kind, finding.confirmed, finding.assumed) == ("deadlock", False, (in_words(IDLE),))


def test_without_library_code_the_deadlock_is_proven() -> None:
    it = holder()
    it.actor.threads.remove(it.thread)

    finding = only_finding(it.watch())

    assert (finding.kind, finding.confirmed, finding.assumed) == ("deadlock", True, ())


def test_idle_library_code_beside_a_linked_wait_is_assumed_to_stay_idle() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Gate")
    call = scene.call(actor, "enter", by=driver)
    actor.works_for().runs(call).gets(call)
    scheduler, engine = driver.thread("scheduler", "user").gets(call), driver.thread("engine", "ray")
    engine.leaf, engine.is_asleep = IDLE_LIBRARY, True
    driver.is_in(QUEUE, "0x1").is_reached_by(scheduler)

    (finding,) = scene.sample().sample().diagnose().findings
    assert driver.key in finding.blocked_behind

    scene.samples.clear()
    engine.is_asleep = False
    stuck, waiting = scene.sample().sample().diagnose().findings
    assert driver.key not in stuck.blocked_behind
    assert (waiting.kind, waiting.members) == ("running", (driver.key,))


def runs(thread: SceneThread) -> None:
    thread.is_asleep = False


def is_torn(thread: SceneThread) -> None:
    thread.is_torn = True


@pytest.mark.parametrize("change", [runs, is_torn])
def test_library_code_that_ran_in_one_reading_may_proceed(change: Callable[[SceneThread], object]) -> None:
    assert not holder().watch(change).is_stuck


def test_idle_user_code_may_proceed() -> None:
    it = holder()
    it.thread.leaf = Frame(function="listen", file="/srv/app/server.py", line=4)
    it.scene.sample()

    assert not it.scene.sample().diagnose().is_stuck


def coroutine_of(scene: Scene, actor: SceneProcess, *, is_library: bool) -> SceneCoroutine:
    actor.threads[0].role = "ray"
    loop = actor.thread("AsyncIO Thread: default", "loop")
    coro = actor.coroutine(loop=loop, is_library=is_library)
    coro.outer = (IDLE_LIBRARY,)
    return coro


@pytest.mark.parametrize("is_library", [True, False])
def test_idle_library_coroutines_are_assumed_to_stay_idle(is_library: bool) -> None:
    it = holder()
    coroutine_of(it.scene, it.actor, is_library=is_library)

    diagnosis = it.watch()

    assert diagnosis.is_stuck is is_library
    assert not any(finding.confirmed for finding in diagnosis.findings)


# Barriers of an actor


def at_barrier(what: str = "threading.Barrier.wait") -> tuple[Scene, SceneProcess, SceneProcess]:
    """A rank that waits for its call to a barrier, and the driver, which waits for the rank."""
    scene = Scene()
    driver = scene.driver()
    barrier = scene.threaded_actor(1, "Barrier", owner_id=driver.worker_id).works_for()
    rank = scene.actor("Rank", owner_id=driver.worker_id).works_for()
    train = scene.call(rank, "train", by=driver)
    arrive = scene.call(barrier, "arrive", by=rank)
    rank.runs(train).gets(arrive)
    barrier.runs(arrive)
    barrier.slots[0].is_in(what, "0x30").is_reached_by(actor=True)
    driver.gets(train)
    return scene, driver, barrier


def test_a_barrier_without_a_further_caller_is_a_suspected_deadlock() -> None:
    scene, _, barrier = at_barrier()

    finding = only_finding(scene.sample().sample().diagnose())

    assert (finding.kind, finding.confirmed, finding.assumed) == ("deadlock", False, (in_words(NO_OTHERS),))
    assert barrier.slots[0].key in finding.members
    assert finding.summary == "Barrier.arrive waits in threading.Barrier.wait, which nothing can reach any more"


def test_the_cycle_begins_at_a_party_that_waits_for_a_rank_at_the_barrier() -> None:
    scene, driver, barrier = at_barrier()
    rank = scene.procs[-1]
    late = scene.actor("Late", owner_id=driver.worker_id).works_for()
    come = scene.call(late, "come", by=driver)
    late.runs(come).gets(scene.call(rank, "weights", by=late))
    driver.gets(come, *rank.running)

    finding = only_finding(scene.sample().sample().diagnose())

    assert finding.summary.startswith("Barrier.arrive waits in threading.Barrier.wait, which Late.come cannot reach")
    assert [step.vertex for step in finding.explanation][:2] == [barrier.slots[0].key, late.key]


def test_a_caller_that_can_proceed_may_reach_the_barrier() -> None:
    scene, driver, _ = at_barrier()
    driver.computes()
    assert scene.sample().sample().diagnose().verdict not in ("deadlock", "hang")


def test_a_wait_of_another_kind_may_have_another_waker() -> None:
    scene, _, _ = at_barrier("threading.Event.wait")
    assert scene.sample().sample().diagnose().verdict not in ("deadlock", "hang")
