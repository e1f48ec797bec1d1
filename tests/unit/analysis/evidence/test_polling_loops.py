"""Which loops only poll, by the samples and quick readings of a snapshot, and what follows for the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import plan_readings
from dstack.analysis.evidence.polling_loops import ENTRIES, find_polling_loops, with_polls_shown
from dstack.diagnosis import Diagnosis, Finding
from dstack.model import Frame
from tests.unit.scenes import APP, JOB, RAY_WORKER, Call, Scene, SceneCoroutine, SceneProcess

ONLY_POLLS = "the loop at app.py:30 only polls"
TRAIN_CONTROLLER = Frame(
    function="run", file="/usr/lib/python3/site-packages/ray/train/controller.py", line=7, origin="ray"
)


@dataclass
class Poller:
    """An actor's method that polls for a call of its own actor, which can only begin when it has ended."""

    scene: Scene
    driver: SceneProcess
    actor: SceneProcess
    again: Call

    def polls(self, timeout_s: float | None = 1.0) -> None:
        self.actor.waits(self.again, timeout_s=timeout_s)

    def watch(self, *changes: Callable[[], object], readings: int = 3, every_s: float = 1.0) -> Diagnosis:
        """Takes both samples and the readings between them, each after one of the ``changes``, if there is one."""
        self.scene.sample()
        for number in range(readings):
            if number < len(changes):
                changes[number]()
            self.scene.read([self.actor], every_s=every_s)
        if len(changes) > readings:
            changes[readings]()
        self.scene.sample()
        return self.scene.diagnose()


def poller() -> Poller:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Poller")
    call = scene.call(actor, "run", by=driver)
    actor.works_for().runs(call)
    again = scene.call(actor, "again", by=actor)
    driver.gets(call)
    it = Poller(scene, driver, actor, again)
    it.polls()
    return it


def only_finding(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    return finding


def is_suspected(diagnosis: Diagnosis) -> bool:
    assert not any(finding.confirmed for finding in diagnosis.findings)
    return diagnosis.verdict == "deadlock"


def nothing() -> None:
    """What changes between two readings of a process that hangs."""


# A loop that only polls


def test_a_loop_that_only_polls_for_what_never_comes_is_a_suspected_deadlock() -> None:
    it = poller()

    diagnosis = it.watch()

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, diagnosis.incomplete, diagnosis.fails()) == ("deadlock", False, True)
    assert (finding.kind, finding.confirmed, finding.assumed) == ("deadlock", False, (ONLY_POLLS,))
    assert set(finding.members) == {it.actor.key, it.again.key}
    assert finding.blocked_behind == (it.driver.key,)


def test_one_sample_alone_shows_a_wait_that_may_time_out() -> None:
    it = poller()

    assert it.scene.diagnose().verdict == "blocked"
    assert plan_readings(it.scene.snapshot()).pollers == {it.actor.worker_id}
    assert plan_readings(it.scene.snapshot()).timeouts_s == (1.0,)


def test_its_wait_names_the_place_of_the_loop() -> None:
    it = poller()

    wait = it.watch().vertices[it.actor.key].wait

    assert wait is not None
    assert (wait.polls, wait.is_timed, wait.timeout_s, wait.proven_groups) == ("app.py:30", False, 1.0, ())


@pytest.mark.parametrize(("readings", "is_found"), [(0, False), (1, False), (2, True), (5, True)])
def test_it_takes_four_observations(readings: int, is_found: bool) -> None:
    assert is_suspected(poller().watch(readings=readings)) is is_found


def test_readings_without_a_second_sample_show_nothing() -> None:
    it = poller()
    it.scene.sample()
    for _ in range(5):
        it.scene.read([it.actor])

    assert find_polling_loops(it.scene.snapshot()) == {}
    assert it.scene.diagnose().verdict == "blocked"


def test_a_process_that_is_in_few_readings_is_not_known() -> None:
    it = poller()
    it.scene.sample()
    it.scene.read([it.actor])
    for _ in range(3):
        it.scene.read([it.driver])
    it.scene.sample()

    assert not is_suspected(it.scene.diagnose())


def test_a_loop_may_be_seen_between_two_polls_in_a_sample_or_reading() -> None:
    it = poller()
    it.actor.computes()
    it.scene.sample()
    it.polls()
    it.scene.read([it.actor]).read([it.actor]).read([it.actor])
    it.actor.computes()
    it.scene.read([it.actor])
    it.polls()
    it.scene.sample()

    assert is_suspected(it.scene.diagnose())


def test_a_loop_that_is_mostly_seen_elsewhere_does_more_than_polling() -> None:
    it = poller()

    assert not is_suspected(it.watch(it.actor.computes, nothing, nothing, nothing, nothing, it.polls, readings=5))


def test_lines_of_the_loop_may_differ() -> None:
    it = poller()

    def is_elsewhere_in_the_loop() -> None:
        it.actor.computes().threads[0].line = 31

    def polls_again() -> None:
        it.polls()
        it.actor.threads[0].line = 33

    finding = only_finding(it.watch(is_elsewhere_in_the_loop, polls_again))

    assert finding.assumed == ("the loop at app.py:33 only polls",)


def test_the_loop_is_what_all_stacks_share() -> None:
    it = poller()
    own = it.actor.threads[0]
    own.outer = (Frame(function="loop", file=APP, line=5),)

    def asks_in_another_function() -> None:
        own.function = "ask_twice"

    finding = only_finding(it.watch(asks_in_another_function))

    assert finding.assumed == ("the loop at app.py:5 only polls",)


def test_a_loop_around_a_call_that_has_no_frame_of_its_own_is_where_that_is_called() -> None:
    it = poller()
    it.actor.threads[0].wants_lock("0x1", it.actor.thread("holder", "user").gets(it.again), timeout_s=1.0)
    it.actor.threads[0].leaf = Frame(function="run", file=APP, line=44)

    finding = only_finding(it.watch())

    assert (finding.confirmed, finding.assumed) == (False, ("the loop at app.py:44 only polls",))


def test_a_loop_of_a_library_that_sleeps_is_its_own_place() -> None:
    it = poller()
    own = it.actor.threads[0]
    it.actor.is_in("Ray Data's next output", "0x1", timeout_s=0.01)
    it.actor.is_reached_by(it.actor.thread("executor", "user").gets(it.again))
    own.leaf = Frame(
        function="get_output_blocking", file="/usr/lib/python3/site-packages/ray/data/state.py", line=8, origin="ray"
    )

    assert "the loop at state.py:8 only polls" in only_finding(it.watch()).assumed


# What is no such loop


def other_dependency(it: Poller) -> None:
    other = it.scene.call(it.actor, "other", by=it.actor)
    it.actor.submitted.remove(other)
    it.actor.waits(other, timeout_s=1.0)


def more_dependencies(it: Poller) -> None:
    it.actor.waits(it.again, it.driver.submitted[0], timeout_s=1.0)


def no_timeout(it: Poller) -> None:
    it.polls(None)


def torn(it: Poller) -> None:
    it.actor.threads[0].is_torn = True


def restarted(it: Poller) -> None:
    it.actor.is_restarted()


def another_task(it: Poller) -> None:
    it.actor.threads[0].task_id = "ab" * 24


def unread(it: Poller) -> None:
    it.actor.threads[0].waits_unreadably("its memory moved")


def another_function(it: Poller) -> None:
    it.actor.threads[0].function = "other"


def other_work_of_the_user(it: Poller) -> None:
    it.actor.threads[0].computes().leaf = None
    it.actor.threads[0].outer = (Frame(function="run", file=APP, line=30),)
    it.actor.threads[0].function = "sort"


def ended_a_task(it: Poller) -> None:
    it.actor.executed = 8


def submitted_a_task(it: Poller) -> None:
    it.scene.task("more", by=it.actor)


def a_task_moved(it: Poller) -> None:
    it.again.becomes(state="PENDING_NODE_ASSIGNMENT")


def attempted_again(it: Poller) -> None:
    it.actor.submitted.clear()


CHANGES = (
    other_dependency,
    more_dependencies,
    no_timeout,
    torn,
    restarted,
    another_task,
    unread,
    another_function,
    other_work_of_the_user,
    ended_a_task,
    submitted_a_task,
    a_task_moved,
    attempted_again,
)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", [0, 2])
def test_one_reading_that_shows_anything_else_is_enough(change: Callable[[Poller], None], at: int) -> None:
    it, same = poller(), poller()
    it.actor.executed = same.actor.executed = 7
    own = it.actor.threads[0]
    before = (own.call, own.function, own.outer, own.task_id, it.actor.started_at, it.again.task)
    submitted = list(it.actor.submitted)

    def undo() -> None:
        own.call, own.function, own.outer, own.task_id, it.actor.started_at, it.again.task = before
        own.is_torn, it.actor.executed = False, 7
        it.actor.submitted[:] = submitted

    changes = [nothing] * at + [lambda: change(it), undo]

    assert is_suspected(same.watch(readings=4))
    assert not is_suspected(it.watch(*changes, readings=4))


@pytest.mark.parametrize("change", [ended_a_task, submitted_a_task])
def test_an_answer_that_is_missing_in_between_hides_nothing(change: Callable[[Poller], None]) -> None:
    it = poller()
    it.actor.executed = 7

    def is_unreachable() -> None:
        it.actor.is_unreachable = True

    def answers_again() -> None:
        it.actor.is_unreachable = False
        change(it)

    assert not is_suspected(it.watch(nothing, is_unreachable, answers_again))


@pytest.mark.parametrize(("timeout_s", "is_found"), [(1.0, True), (3.4, True), (3.6, False), (60.0, False)])
def test_a_wait_that_has_not_timed_out_yet_is_no_poll(timeout_s: float, is_found: bool) -> None:
    it = poller()
    it.polls(timeout_s)  # 3.5 s pass from the end of the first sample to the beginning of the second

    assert is_suspected(it.watch()) is is_found


@pytest.mark.parametrize(
    ("timeouts", "is_found"),
    [((1.0, 1.0, 1.0, 0.4), False), ((0.2, 0.4, 0.8, 1.6), True), ((0.9, 0.4, 1.0, 0.5), True)],
)
def test_timeouts_that_run_out_are_those_of_a_deadline(timeouts: tuple[float, ...], is_found: bool) -> None:
    it = poller()
    first, *later = timeouts
    it.polls(first)

    assert is_suspected(it.watch(*(lambda seconds=seconds: it.polls(seconds) for seconds in later))) is is_found


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_thread_that_is_between_two_pieces_of_work_is_in_no_loop_of_the_application(entry: str) -> None:
    it = poller()
    own = it.actor.threads[0]
    own.function = "one_piece"
    own.outer = (
        Frame(function="loop", file=f"/usr/lib/python3{'/' * (entry[0] != '/')}{entry}", line=9, origin="ray"),
    )

    def another_piece() -> None:
        own.function = "another_piece"

    assert not is_suspected(it.watch(another_piece))


def test_refs_that_could_not_be_read_may_be_others_each_time() -> None:
    it = poller()
    it.actor.keeps(it.again).threads[0].gets_held_refs(timeout_s=1.0)

    assert not is_suspected(it.watch())


# What else moves in the job


@pytest.mark.parametrize(
    ("job_id", "polled", "is_found"),
    [(JOB, False, False), ("02000000", False, True), (JOB, True, True)],
    ids=["of the job", "of another job", "a call that is made again and again"],
)
def test_anything_else_that_its_job_has_executed_is_progress(job_id: str, polled: bool, is_found: bool) -> None:
    it = poller()
    other = it.scene.actor("Other", job_id=job_id).works_for(job_id)
    other.executed = 1
    call = it.scene.call(other, "is_ready", by=it.driver)
    it.driver.submitted.remove(call)
    if polled:
        it.scene.repeats(call, by=it.driver)

    def executes() -> None:
        other.executed = 2

    assert is_suspected(it.watch(nothing, nothing, nothing, executes)) is is_found


def test_a_worker_of_an_unknown_job_may_be_of_one_that_has_moved() -> None:
    it = poller()
    it.actor.worker = replace(it.actor.worker, job_id=None)
    other = it.scene.actor("Other").works_for()
    other.executed = 1

    def executes() -> None:
        other.executed = 2

    assert not is_suspected(it.watch(nothing, nothing, nothing, executes))


def test_a_task_that_began_is_progress() -> None:
    it = poller()
    call, worker = it.scene.task("other", by=it.driver), it.scene.worker().works_for()
    worker.idles()

    assert not is_suspected(it.watch(nothing, nothing, nothing, lambda: worker.runs(call)))


def test_a_task_that_began_on_a_new_worker_is_progress() -> None:
    it = poller()
    call = it.scene.task("other", by=it.driver)

    assert not is_suspected(it.watch(nothing, nothing, nothing, lambda: it.scene.worker().works_for().runs(call)))


def test_a_task_that_another_process_of_the_job_submitted_is_progress() -> None:
    it = poller()

    assert not is_suspected(it.watch(nothing, nothing, nothing, lambda: it.scene.task("more", by=it.driver)))


def test_calls_of_a_library_for_itself_are_no_progress() -> None:
    it = poller()
    stats = it.scene.actor("_StatsActor", name="datasets_stats_actor").works_for()
    stats.executed = 1

    def reports() -> None:
        stats.executed = 2
        it.scene.call(stats, "update", by=it.actor)

    assert is_suspected(it.watch(reports))


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
def test_a_controller_whose_tasks_can_proceed_or_that_has_none_is_free(with_work: bool, stuck: bool) -> None:
    scene, actor, _ = controller(with_work=with_work, stuck=stuck)

    assert not is_suspected(watch(scene, actor))


def test_a_controller_that_is_somewhere_else_is_free() -> None:
    scene, actor, coro = controller()
    scene.sample().read([actor]).read([actor])
    coro.outer = (replace(TRAIN_CONTROLLER, line=8),)
    scene.read([actor]).sample()

    assert not is_suspected(scene.diagnose())


@pytest.mark.parametrize("origin", ["user", "library"])
def test_of_other_code_that_sleeps_it_is_not_known_why(origin: str) -> None:
    scene, actor, coro = controller()
    file = APP if origin == "user" else "/usr/lib/python3/site-packages/engine/core.py"
    coro.outer = (Frame(function="run", file=file, line=7, origin="user" if origin == "user" else "library"),)

    assert not is_suspected(watch(scene, actor))


def test_a_coroutine_at_the_address_of_one_that_has_ended_is_another() -> None:
    scene, actor, coro = controller()
    scene.sample().read([actor]).read([actor])
    coro.label = "Task-99"
    scene.read([actor])
    coro.label = ""
    scene.read([actor]).sample()

    assert not is_suspected(scene.diagnose())


@pytest.mark.parametrize(("sleeps", "is_found"), [(True, True), (False, False)])
def test_a_thread_of_a_library_that_is_in_other_c_code_is_no_controller(sleeps: bool, is_found: bool) -> None:
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
    """A driver that asks a buffer for its size; the producer needs the GPU that the driver's other actor holds."""

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
    driver.threads[0].sleeps = True
    scene.repeats(size, by=driver)
    return Heartbeat(scene, driver, buffer, producer, size)


def watched(it: Heartbeat, *changes: Callable[[], object]) -> Diagnosis:
    it.scene.sample()
    for number in range(4):
        if number < len(changes):
            changes[number]()
        it.scene.read([it.driver])
    return it.scene.sample().diagnose()


def test_a_heartbeat_loop_waits_for_those_who_use_the_actor() -> None:
    it = heartbeat()

    finding = only_finding(watched(it))

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert "the loop at app.py:20 only polls" in finding.assumed
    assert {it.driver.key, it.producer.key} <= set(finding.members)


def test_a_user_of_the_polled_actor_that_can_proceed_may_end_the_poll() -> None:
    it = heartbeat()
    _, other = it.scene.run("other", by=it.driver)
    other.works_for().holds(it.buffer).computes()

    assert not is_suspected(watched(it))


def test_a_heartbeat_loop_may_be_seen_in_its_call() -> None:
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
        it.driver.threads[0].sleeps = True

    assert not is_suspected(watched(it, nothing, works, sleeps))


def test_a_loop_that_works_all_the_time_and_reports_it_is_no_heartbeat() -> None:
    it = heartbeat()
    it.driver.threads[0].sleeps = False

    assert not is_suspected(watched(it))


def test_a_heartbeat_loop_that_is_seen_in_another_wait_is_free() -> None:
    it = heartbeat()
    other = it.scene.task("other", by=it.driver)

    assert not is_suspected(watched(it, nothing, lambda: it.driver.gets(other), it.driver.computes))


def test_a_heartbeat_loop_that_is_seen_in_a_wait_for_something_else_is_free() -> None:
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
    assert find_polling_loops(it.scene.snapshot()) == {}


@pytest.mark.parametrize("count", [1, 2])
def test_loops_that_alone_use_an_actor_wait_for_nothing_that_must_come(count: int) -> None:
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
        caller.threads[0].sleeps = True

    diagnosis = watch(scene, *callers)

    assert not diagnosis.is_stuck
    assert set(find_polling_loops(scene.snapshot())) == {caller.key for caller in callers}


# In what follows it is shown at its poll


def test_a_loop_is_shown_at_its_poll_in_both_samples() -> None:
    it = poller()
    it.actor.computes()
    it.scene.sample()
    it.polls()
    it.scene.read([it.actor]).read([it.actor]).read([it.actor])
    it.actor.computes()
    it.scene.sample()
    snapshot = it.scene.snapshot()

    shown = with_polls_shown(snapshot, find_polling_loops(snapshot))

    for sample in shown.samples:
        worker = next(one for one in sample.workers if one.worker_id == it.actor.worker_id)
        assert worker.process is not None
        (thread,) = worker.process.threads
        assert thread.call is not None
        assert (thread.call.refs, thread.still, thread.on_cpu) == ((it.again.ref,), True, False)
    assert with_polls_shown(snapshot, {}) is snapshot
    assert RAY_WORKER in {frame.file for frame in shown.frames}


def test_a_heartbeat_loop_that_is_all_that_uses_the_actor_asks_for_what_comes_from_outside() -> None:
    scene = Scene()
    driver, monitor = scene.driver(), scene.actor("Monitor")
    runner = scene.actor("Runner", owner_id=driver.worker_id).works_for().idles()
    run, status = scene.call(monitor, "run", by=driver), scene.call(runner, "status", by=monitor)
    monitor.submitted.remove(status)
    monitor.works_for().runs(run).holds(runner)
    monitor.threads[0].sleeps = True
    driver.gets(run).holds(runner).holds(monitor)
    scene.repeats(status, by=run)
    scene.sample()
    for _ in range(4):
        scene.read([monitor])

    assert not is_suspected(scene.sample().diagnose())


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
    driver.threads[0].sleeps = True
    scene.repeats(size, by=driver)
    scene.sample()
    for _ in range(4):
        scene.read([driver])
    return scene.sample(), driver, producer


def test_what_is_polled_stands_still_where_its_users_wait_for_what_nothing_is_seen_to_end() -> None:
    scene, driver, producer = polled_buffer()

    diagnosis = scene.diagnose()

    assert diagnosis.verdict == "stalled"
    assert {driver.key, producer.key} <= set(diagnosis.findings[0].members)


def test_a_user_of_what_is_polled_that_waits_with_a_timeout_does_not_stand_still() -> None:
    scene, _, _ = polled_buffer(timeout_s=60.0)

    assert scene.diagnose().verdict == "blocked"
