"""Stalled chains, and look-alikes that may proceed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from dstack.analysis.second_sample import plan_readings
from dstack.model.diagnosis import Diagnosis, Entry, Finding
from dstack.report.finding import status_sentence, titled
from tests.fuzzing.effort import examples
from tests.unit.scenes import JOB, Call, Scene, SceneProcess

CONDITION = "threading.Condition.wait"
ALL_REDUCE = "all_reduce of torch.distributed"
OTHER_JOB = "02000000"


def parked(scene: Scene, by: SceneProcess, what: str = CONDITION) -> tuple[SceneProcess, Call]:
    """An actor whose only call waits for an unknown waker."""
    actor = scene.actor("Gate")
    call = scene.call(actor, "enter", by=by)
    actor.runs(call).is_in(what, "0x1")
    return actor, call


def waiting() -> Scene:
    """A driver that gets a call of a parked actor."""
    scene = Scene()
    driver = scene.driver()
    _, call = parked(scene, by=driver)
    driver.gets(call)
    return scene


def twice(scene: Scene) -> Diagnosis:
    return scene.sample().second_sample().diagnose()


def only_finding(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    return finding


def texts(finding: Finding) -> str:
    return "\n".join(step.text for step in finding.explanation)


# Stalled chains


def siblings(*, is_thread: bool) -> Scene:
    """A call that needs an item of a thread or coroutine of its actor, which needs an event from the call."""
    scene = Scene()
    driver = scene.driver()
    mill = scene.actor("Mill") if is_thread else scene.async_actor("Mill")
    call = scene.call(mill, "grind", by=driver)
    driver.gets(call)
    if is_thread:
        mill.runs(call)
        grinds, delivers = mill.slots[0], mill.thread("deliveries", "user")
        grinds.is_in("queue.Queue.get", "0x1").is_reached_by(delivers)
        delivers.is_in("threading.Event.wait", "0x2").is_reached_by(grinds)
    else:
        started, other = mill.begins(call), mill.coroutine(call)
        started.is_in("asyncio.Queue.get", "0x1").is_reached_by(other)
        other.is_in("asyncio.Event.wait", "0x2").is_reached_by(started)
    return scene


@pytest.mark.parametrize(("is_thread", "call"), [(True, "threading.Event.wait"), (False, "asyncio.Event.wait")])
def test_the_other_side_of_an_awaited_object_is_printed_with_its_line(is_thread: bool, call: str) -> None:
    finding = only_finding(twice(siblings(is_thread=is_thread)))

    (remark,) = [one for one in finding.diagram.remarks if one.text.startswith("Holds what is awaited: ")]
    assert f"waits in {call} for a call of Event.set" in remark.text
    assert (remark.file, remark.line) != (None, None)
    assert f"waits in {call}" in texts(finding)


def test_an_other_side_that_is_drawn_is_not_repeated() -> None:
    scene = siblings(is_thread=False)
    finding = only_finding(twice(scene))
    drawn = {row.vertex for row in finding.diagram.rows if isinstance(row, Entry)}

    assert not any(remark.vertex in drawn for remark in finding.diagram.remarks)


def test_a_chain_that_ends_in_a_condition_without_a_signaller_is_stalled() -> None:
    scene = waiting()

    diagnosis = twice(scene)

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, finding.kind, diagnosis.incomplete) == ("stalled", "stalled", False)
    assert (finding.waiters_total, finding.waiters_direct, finding.watched_s) == (2, 1, 0.5)
    assert "Likely, not proven: none of them moved within 0.5 s" in texts(finding)


def test_workers_in_a_stalled_chain_are_sampled_again() -> None:
    scene = waiting()
    scene.worker()
    driver, gate, _ = scene.procs

    assert plan_readings(scene.snapshot()).workers == {driver.worker_id, gate.worker_id}


def test_full_slots_on_one_condition_block_the_call_that_would_notify_it() -> None:
    scene = Scene()
    driver, gate = scene.driver(), scene.threaded_actor(4, "Gate", name="g")
    gate.runs(*(scene.call(gate, "enter", by=driver) for _ in range(4)))
    for thread in gate.slots:
        thread.is_in(CONDITION, "0x1")
    opening = scene.call(gate, "open", by=driver).arrives()
    driver.gets(opening)

    finding = only_finding(twice(scene))

    assert finding.kind == "stalled"
    assert "All 4 threads of actor Gate wait in threading.Condition.wait" in texts(finding)
    assert "If Gate.open, which is queued, would end the wait, let it run: raise max_concurrency" in str(finding.advice)


def test_calls_in_two_collectives_are_stalled_and_the_outlier_is_named() -> None:
    scene = ranks(7)
    odd = scene.actor("Trainer", name="odd")
    odd.runs(scene.call(odd, "train", by=scene.procs[0])).is_in("barrier of torch.distributed")
    scene.procs[0].gets(*scene.procs[0].submitted)

    finding = only_finding(twice(scene))

    assert finding.kind == "stalled"
    assert f"7 of 8 Trainer.train calls wait in {ALL_REDUCE}" in texts(finding)
    assert 'Not in this call: Trainer.train (actor Trainer "odd"' in texts(finding)
    assert "1 of 8" not in texts(finding), "the outlier is not named twice"
    assert str(finding.advice).startswith("Next: `dstack stacks` shows where those Trainer.train are that are not in ")


def ranks(count: int) -> Scene:
    """A driver that gets the calls of this many trainers, all of which are in one collective."""
    scene = Scene()
    driver = scene.driver()
    for _ in range(count):
        actor = scene.actor("Trainer")
        actor.runs(scene.call(actor, "train", by=driver)).is_in(ALL_REDUCE)
    driver.gets(*driver.submitted)
    return scene


def test_a_dead_or_idle_rank_is_named() -> None:
    scene = ranks(7)
    scene.actor("Trainer", name="lazy")
    dead = scene.actor("Trainer", name="gone", state="DEAD", death_cause="out of memory")
    scene.procs.remove(dead)

    finding = only_finding(twice(scene))

    assert 'Not in this call: actor Trainer "lazy", which does not run Trainer.train' in texts(finding)
    assert 'Not in this call: actor Trainer "gone", which has died: out of memory' in texts(finding)


# Look-alikes


def test_one_sample_gives_no_stalled_finding() -> None:
    assert only_finding(waiting().sample().diagnose()).kind == "running"


def test_a_wait_without_a_ray_waiter_is_idle() -> None:
    scene = Scene()
    scene.driver().is_in("threading.Event.wait", "0x1")
    worker = scene.worker()
    helper = worker.thread("consumer", "user").is_in("queue.Queue.get", "0x2")
    worker.threads[0].joins(helper)

    diagnosis = twice(scene)

    assert (diagnosis.verdict, diagnosis.findings) == ("idle", ())


def test_a_rank_that_runs_elsewhere_is_the_final_blocker() -> None:
    scene = ranks(7)
    late = scene.actor("Trainer", name="late")
    late.runs(scene.call(late, "train", by=scene.procs[0]))
    scene.procs[0].gets(*scene.procs[0].submitted)

    diagnosis = twice(scene)

    finding = only_finding(diagnosis)
    assert (diagnosis.verdict, finding.final_blockers[0].vertex) == ("running", late.key)
    assert 'Not in this call: Trainer.train (actor Trainer "late"' in texts(finding)
    assert 'Trainer.train of "late", running at' in finding.summary


def feeder_runs(scene: Scene) -> None:
    scene.run("feed", by=scene.procs[0])


def feeder_polls(scene: Scene) -> None:
    call, _ = scene.run("slow", by=scene.procs[0])
    call_of_feeder, feeder = scene.run("feed", by=scene.procs[0])
    feeder.gets(call, timeout_s=1.0)
    scene.procs[0].gets(call_of_feeder)


def driver_proceeds(scene: Scene) -> None:
    scene.driver()


def thread_computes(scene: Scene) -> None:
    actor = scene.actor("Pump")
    actor.thread("pump", "user")
    actor.worker = replace(actor.worker, job_id=JOB)


def thread_sleeps_in_user_code(scene: Scene) -> None:
    thread_computes(scene)
    scene.procs[-1].threads[-1].is_asleep = True


def a_worker_is_unreadable(scene: Scene) -> None:
    scene.worker().is_unreadable = True


def a_worker_is_unreachable(scene: Scene) -> None:
    scene.worker().is_unreachable = True


def waits_with_a_timeout(scene: Scene) -> None:
    (call,) = scene.procs[0].submitted
    scene.procs[0].gets(call, timeout_s=5.0)


def also_waits_for_a_value(scene: Scene) -> None:
    (call,) = scene.procs[0].submitted
    scene.procs[0].gets(call, "ab" * 28)


@pytest.mark.parametrize(
    "change",
    [
        feeder_runs,
        feeder_polls,
        driver_proceeds,
        thread_computes,
        thread_sleeps_in_user_code,
        a_worker_is_unreadable,
        a_worker_is_unreachable,
        waits_with_a_timeout,
        also_waits_for_a_value,
    ],
)
def test_no_chain_is_stalled_while_another_execution_might_end_it(change: Callable[[Scene], None]) -> None:
    scene = waiting()
    change(scene)

    kinds = {finding.kind for finding in twice(scene).findings}

    assert kinds
    assert "stalled" not in kinds


def test_the_execution_that_might_end_a_wait_is_named() -> None:
    scene = waiting()
    scene.run("feed", by=scene.procs[0])

    finding = only_finding(twice(scene))

    assert finding.kind == "running"
    assert "Running, and could end the wait: feed" in texts(finding)


def test_executions_of_another_job_do_not_matter() -> None:
    scene = waiting()
    scene.driver(job_id=OTHER_JOB)

    assert twice(scene).verdict == "stalled"


def test_a_wait_that_changed_between_the_samples_is_not_stalled() -> None:
    scene = waiting()
    _, gate = scene.procs

    scene.sample()
    gate.is_in(CONDITION, "0x2")
    scene.second_sample()

    assert scene.diagnose().verdict != "stalled"


def test_an_execution_that_began_between_the_samples_might_end_the_wait() -> None:
    scene = waiting()
    worker = scene.worker()

    scene.sample()
    worker.runs(scene.task("feed", by=scene.procs[0]))
    scene.sample(only=[proc.worker_id for proc in scene.procs])

    assert scene.diagnose().verdict != "stalled"


# Random snapshots

State = Literal["parked", "parked with a timeout", "computes", "gets", "polls", "unread"]
states: st.SearchStrategy[State] = st.sampled_from(
    [*(["parked", "gets", "gets"] * 3), "parked with a timeout", "computes", "polls", "unread"]
)


@st.composite
def systems(draw: st.DrawFn) -> tuple[Scene, list[SceneProcess], list[State], list[list[int]]]:
    """Actors of one driver, each parked, blocked on other actors, or able to proceed."""
    count = draw(st.integers(1, 5))
    scene = Scene()
    driver = scene.driver()
    actors = [scene.actor(f"A{number}") for number in range(count)]
    calls = [scene.call(actor, "run", by=driver) for actor in actors]
    does = draw(st.lists(states, min_size=count, max_size=count))
    wants = [draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2)) for _ in range(count)]
    for actor, call, state, targets in zip(actors, calls, does, wants, strict=True):
        actor.runs(call)
        _put(actor, state, [calls[target] for target in targets])
    driver.gets(*(calls[number] for number in draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3))))
    return scene, actors, does, wants


def _put(actor: SceneProcess, state: State, refs: list[Call]) -> None:
    if state == "parked":
        actor.is_in(CONDITION, "0x1")
    elif state == "parked with a timeout":
        actor.is_in(CONDITION, "0x1", timeout_s=1.0)
    elif state == "gets":
        actor.gets(*refs)
    elif state == "polls":
        actor.gets(*refs, timeout_s=1.0)
    elif state == "unread":
        actor.is_unreadable = True


@given(systems())
@examples(300)
def test_a_chain_with_a_running_or_unobserved_end_is_never_stalled(
    system: tuple[Scene, list[SceneProcess], list[State], list[list[int]]],
) -> None:
    scene, actors, does, wants = system

    diagnosis = twice(scene)

    number_of = {actor.key: number for number, actor in enumerate(actors)}
    stalled = [finding for finding in diagnosis.findings if finding.kind == "stalled"]
    event("stalled" if stalled else "not stalled")
    for finding in stalled:
        ahead = [number_of[key] for key in finding.members if key in number_of]
        reached: set[int] = set()
        while ahead:
            number = ahead.pop()
            if number not in reached:
                reached.add(number)
                ahead += wants[number] if does[number] == "gets" else []
        assert {does[number] for number in reached} <= {"parked", "gets"}
        assert "parked" in {does[number] for number in reached}


# What could still end it


def named_gate(name: str = "gate") -> Scene:
    """A driver that gets a call of a parked actor with a name, beside the driver of another job."""
    scene = waiting()
    _, gate = scene.procs
    scene.becomes(scene.actors[-1], name=name)
    scene.driver(job_id=OTHER_JOB)
    assert gate.worker.actor_id == scene.actors[-1].actor_id
    return scene


def test_a_stalled_report_says_in_its_first_lines_that_it_is_not_proven() -> None:
    finding = only_finding(twice(waiting()))

    assert finding.doubt == "likely, not proven: a message from outside could still end it"
    assert status_sentence(finding).endswith("; likely, not proven: a message from outside could still end it.")
    assert titled(finding) == "stalled"


def test_a_report_of_a_deadlock_has_no_doubt() -> None:
    scene = Scene()
    left, right = scene.actor("Left"), scene.actor("Right")
    driver = scene.driver()
    ping = scene.call(left, "ping", by=driver)
    pong = scene.call(right, "pong", by=left)
    left.runs(ping).gets(pong)
    right.runs(pong).gets(ping)

    assert [one.doubt for one in twice(scene).findings] == [""]


def test_a_wait_in_a_named_actor_that_a_running_job_may_call_is_not_stalled() -> None:
    scene = named_gate()
    scene.procs[-1].computes()

    finding = only_finding(twice(scene))

    assert finding.kind == "running"
    callers = [one.text for one in finding.diagram.remarks if one.text.startswith("May end the wait by a call, ")]
    assert len(callers) == 1
    assert f"pid {scene.procs[-1].worker.pid}" in callers[0]


@pytest.mark.parametrize("name", ["gate", ""])
def test_a_wait_that_no_running_job_may_end_stays_stalled(name: str) -> None:
    """Look-alikes: the other job is at rest, or the actor has no name."""
    scene = named_gate(name)
    if name:
        scene.procs[-1].is_in(CONDITION, "0x9")
    else:
        scene.procs[-1].computes()

    kinds = {finding.kind for finding in twice(scene).findings}

    assert "stalled" in kinds
