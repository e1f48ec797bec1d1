"""Loops that only poll, as the samples and quick readings of a snapshot show them, and their verdicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.evidence.evidence import Evidence
from dstack.analysis.second_sample import plan_readings
from dstack.libraries.data import STATE
from dstack.observed.processes import Frame, LoopBody
from tests.unit.analysis.evidence.polling_scenes import (
    ONLY_POLLS,
    TRAIN_CONTROLLER,
    Poller,
    is_suspected,
    nothing,
    only_finding,
    poller,
)
from tests.unit.scenes import APP, JOB, Scene, SceneProcess

LOOP = LoopBody(first_line=4, last_line=9)

# A loop that only polls


def test_a_loop_that_polls_in_vain_is_a_suspected_deadlock() -> None:
    it = poller()

    diagnosis = it.watch()

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, diagnosis.incomplete, diagnosis.fails()) == ("deadlock", False, True)
    assert (finding.kind, finding.confirmed, finding.assumed) == ("deadlock", False, (ONLY_POLLS,))
    assert set(finding.members) == {it.actor.key, it.again.key}
    assert finding.blocked_behind == (it.driver.key,)


def test_one_sample_shows_a_wait_that_may_time_out() -> None:
    it = poller()

    assert it.scene.diagnose().verdict == "running"
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

    assert Evidence(it.scene.snapshot()).polls == {}
    assert it.scene.diagnose().verdict == "running"


def test_a_process_that_is_in_few_readings_is_not_known() -> None:
    it = poller()
    it.scene.sample()
    it.scene.read([it.actor])
    for _ in range(3):
        it.scene.read([it.driver])
    it.scene.sample()

    assert not is_suspected(it.scene.diagnose())


def test_a_loop_may_be_observed_between_two_polls() -> None:
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


def test_a_loop_that_is_mostly_observed_elsewhere_does_more_than_polling() -> None:
    it = poller()

    assert not is_suspected(it.watch(it.actor.computes, nothing, nothing, nothing, nothing, it.polls, readings=5))


def test_lines_of_the_loop_may_differ() -> None:
    it = poller()

    def is_at_another_place_in_the_loop() -> None:
        it.actor.computes().threads[0].line = 31

    def polls_again() -> None:
        it.polls()
        it.actor.threads[0].line = 33

    finding = only_finding(it.watch(is_at_another_place_in_the_loop, polls_again))

    assert finding.assumed == ("the loop at app.py:33 only polls",)


def test_the_loop_is_what_all_stacks_share() -> None:
    it = poller()
    own = it.actor.threads[0]
    own.outer = (Frame(function="loop", file=APP, line=5, only_polls=True, body=LOOP),)

    def asks_in_another_function() -> None:
        own.function = "ask_twice"

    finding = only_finding(it.watch(asks_in_another_function))

    assert finding.assumed == ("the loop at app.py:5 only polls",)


def test_a_loop_around_a_call_without_a_frame_is_at_its_caller() -> None:
    it = poller()
    it.actor.threads[0].wants_lock("0x1", it.actor.thread("holder", "user").gets(it.again), timeout_s=1.0)
    it.actor.threads[0].leaf = Frame(function="run", file=APP, line=44, only_polls=True, body=LOOP)

    finding = only_finding(it.watch())

    assert (finding.confirmed, finding.assumed) == (False, ("the loop at app.py:44 only polls",))


def test_a_loop_of_a_library_that_sleeps_is_its_own_place() -> None:
    it = poller()
    own = it.actor.threads[0]
    it.actor.is_in("Ray Data's next output", "0x1", timeout_s=0.01)
    it.actor.is_reached_by(it.actor.thread("executor", "user").gets(it.again))
    own.leaf = Frame(
        function="OpState.get_output_blocking", file=f"/usr/lib/python3/site-packages{STATE}", line=8, origin="ray"
    )

    assert "the loop at streaming_executor_state.py:8 only polls" in only_finding(it.watch()).assumed


# Loops that something else may end


def test_a_loop_that_is_not_proven_to_only_poll_may_proceed() -> None:
    it = poller()
    it.actor.threads[0].only_polls = False

    diagnosis = it.watch()

    assert (diagnosis.verdict, only_finding(diagnosis).kind) == ("running", "polling")


@pytest.mark.parametrize("is_proven", [True, False])
def test_a_function_between_the_loop_and_its_poll_must_only_poll(is_proven: bool) -> None:
    it = poller()
    own = it.actor.threads[0]
    own.outer = (Frame(function="loop", file=APP, line=5, only_polls=True, body=LOOP),)
    own.only_polls = is_proven

    assert is_suspected(it.watch()) is is_proven


def test_a_function_that_only_polls_in_no_loop_may_proceed() -> None:
    it = poller()
    it.actor.threads[0].outer = (Frame(function="main", file=APP, line=5),)
    it.actor.threads[0].leaf = Frame(function="run", file=APP, line=44, only_polls=True)

    assert not is_suspected(it.watch())


@pytest.mark.parametrize(("function", "is_known"), [("ResultThread.run", True), ("ResultThread.stop", False)])
def test_a_loop_of_a_library_that_is_not_known_may_proceed(function: str, is_known: bool) -> None:
    it = poller()
    file = "/usr/lib/python3/site-packages/ray/util/multiprocessing/pool.py"
    own = it.actor.threads[0]
    own.leaf = Frame(function="wait", file="/site-packages/ray/_private/worker.py", line=3, origin="ray")
    own.outer = (Frame(function=function, file=file, line=8, origin="ray", body=LOOP),)

    assert is_suspected(it.watch()) is is_known


def flagged() -> Poller:
    """The loop also ends by a flag, which the actor's other thread may set after the same call."""
    it = poller()
    it.actor.threads[0].until = "stop.is_set()"
    it.actor.thread("setter", "user").gets(it.again)
    return it


def test_a_flag_that_only_stuck_code_may_set_does_not_end_the_loop() -> None:
    it = flagged()

    finding = only_finding(it.watch())

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert ONLY_POLLS in finding.assumed


def sleeps(it: Poller) -> None:
    it.actor.threads[1].gets(it.again, timeout_s=60.0)


def computes(it: Poller) -> None:
    it.actor.threads[1].computes()


def is_called(it: Poller) -> None:
    it.scene.worker().works_for().runs(it.scene.task("other", by=it.driver)).holds(it.actor).computes()


def runs_event_loop(it: Poller) -> None:
    runner = it.actor.thread("loop", "user").gets(it.again)
    runner.outer = (Frame(function="run_forever", file="/usr/lib/python3/asyncio/base_events.py", line=9),)


@pytest.mark.parametrize("change", [sleeps, computes, is_called, runs_event_loop])
def test_a_flag_that_other_code_may_set_ends_the_loop(change: Callable[[Poller], None]) -> None:
    it = flagged()
    change(it)

    assert not is_suspected(it.watch())


@pytest.mark.parametrize(
    ("over", "until", "words"),
    [("", "stop.is_set()", "goes on until stop.is_set()"), ("range(9)", "", "goes over range(9)")],
)
def test_the_finding_says_what_ends_a_loop(over: str, until: str, words: str) -> None:
    it = poller()
    body = LoopBody(first_line=4, last_line=9, over=over, until=until)
    it.actor.threads[0].outer = (Frame(function="loop", file=APP, line=5, body=body),)

    finding = only_finding(it.watch())

    assert finding.kind == "polling"
    assert f"The loop of Poller.run {words}" in [step.text for step in finding.explanation]


# Loops that do something else


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


def other_user_work(it: Poller) -> None:
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
    other_user_work,
    ended_a_task,
    submitted_a_task,
    a_task_moved,
    attempted_again,
)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("at", [0, 2])
def test_one_reading_with_a_difference_ends_the_suspicion(change: Callable[[Poller], None], at: int) -> None:
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
def test_a_missing_answer_in_one_reading_hides_no_progress(change: Callable[[Poller], None]) -> None:
    it = poller()
    it.actor.executed = 7

    def is_unreachable() -> None:
        it.actor.is_unreachable = True

    def answers_again() -> None:
        it.actor.is_unreachable = False
        change(it)

    assert not is_suspected(it.watch(nothing, is_unreachable, answers_again))


@pytest.mark.parametrize(("timeout_s", "is_found"), [(1.0, True), (3.4, True), (3.6, False), (60.0, False)])
def test_a_wait_that_has_not_timed_out_yet_does_not_poll(timeout_s: float, is_found: bool) -> None:
    it = poller()
    it.polls(timeout_s)  # 3.5 s pass from the end of the first sample to the beginning of the second

    assert is_suspected(it.watch()) is is_found


@pytest.mark.parametrize(
    ("timeouts", "is_found"),
    [((1.0, 1.0, 1.0, 0.4), False), ((0.2, 0.4, 0.8, 1.6), True), ((0.9, 0.4, 1.0, 0.5), True)],
)
def test_decreasing_timeouts_belong_to_a_deadline(timeouts: tuple[float, ...], is_found: bool) -> None:
    it = poller()
    first, *later = timeouts
    it.polls(first)

    assert is_suspected(it.watch(*(lambda seconds=seconds: it.polls(seconds) for seconds in later))) is is_found


def test_unread_refs_may_differ_each_time() -> None:
    it = poller()
    it.actor.keeps(it.again).threads[0].gets_held_refs(timeout_s=1.0)

    assert not is_suspected(it.watch())


# Progress of the job


@pytest.mark.parametrize(
    ("job_id", "polled", "is_found"),
    [(JOB, False, False), ("02000000", False, True), (JOB, True, True)],
    ids=["of the job", "of another job", "a call that is made again and again"],
)
def test_any_other_task_that_the_job_executed_is_progress(job_id: str, polled: bool, is_found: bool) -> None:
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


def test_a_worker_of_an_unknown_job_may_belong_to_a_job_that_made_progress() -> None:
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


# Loops around calls that succeed


def heartbeat_loop() -> tuple[Scene, SceneProcess]:
    """An actor that asks another one for its status again and again."""
    scene = Scene()
    driver, monitor = scene.driver(), scene.actor("Monitor")
    runner = scene.actor("Runner", owner_id=driver.worker_id).works_for().idles()
    run, status = scene.call(monitor, "run", by=driver), scene.call(runner, "status", by=monitor)
    monitor.submitted.remove(status)
    monitor.works_for().runs(run).holds(runner)
    monitor.threads[0].sleeps = monitor.threads[0].is_in_loop = True
    driver.gets(run).holds(runner).holds(monitor)
    scene.repeats(status, by=run)
    scene.sample()
    for _ in range(4):
        scene.read([monitor])
    return scene.sample(), monitor


def test_a_heartbeat_loop_that_is_the_only_user_of_the_actor_waits_for_an_outside_event() -> None:
    scene, _ = heartbeat_loop()

    assert not is_suspected(scene.diagnose())


def test_a_thread_that_shows_no_frames_once_is_no_heartbeat_loop() -> None:
    scene, monitor = heartbeat_loop()
    snapshot = scene.snapshot()
    assert monitor.key in Evidence(snapshot).polls

    *others, last = snapshot.readings
    (worker,) = last.workers
    assert worker.process is not None
    threads = tuple(
        dataclasses.replace(one, stack=len(snapshot.stacks), sleeps=False) for one in worker.process.threads
    )
    ending = replace(last, workers=(replace(worker, process=dataclasses.replace(worker.process, threads=threads)),))
    snapshot = replace(snapshot, stacks=(*snapshot.stacks, ()), readings=(*others, ending))

    assert monitor.key not in Evidence(snapshot).polls
    assert not is_suspected(diagnose(snapshot))


@pytest.mark.parametrize(("timeout_s", "is_read"), [(5.0, True), (60.0, False)])
def test_a_loop_is_read_several_times_only_if_its_timeout_may_pass_meanwhile(timeout_s: float, is_read: bool) -> None:
    it = poller()
    it.polls(timeout_s=timeout_s)

    plan = plan_readings(it.scene.snapshot())

    assert (it.actor.worker_id in plan.pollers, bool(plan.timeouts_s)) == (is_read, is_read)
    assert it.actor.worker_id in plan.workers


def test_a_wait_that_a_library_retries_is_read_several_times_whatever_its_timeout() -> None:
    it = poller()
    it.polls(timeout_s=60.0)
    it.actor.threads[0].outer = (TRAIN_CONTROLLER,)

    assert plan_readings(it.scene.snapshot()).pollers == {it.actor.worker_id}
