"""Threads that are reported as stuck in the kernel are stuck, and a job in which something moves is not stalled."""

from __future__ import annotations

from hypothesis import event, given
from hypothesis import strategies as st

from dstack.analysis.diagnose import diagnose
from tests.fuzzing.effort import examples
from tests.kernel_worlds.judge import Judgement, judged
from tests.kernel_worlds.observed import ObservedWorld
from tests.kernel_worlds.random_worlds import random_world
from tests.kernel_worlds.world import Action, Channel, Process, World

seeds = st.integers(0, 2**32)
very_many = examples(3_000)


def judgement(world: World, *hidden: int) -> Judgement:
    observed = ObservedWorld(world, hidden)
    return judged(observed.stage, diagnose(observed.snapshot()))


@given(seeds)
@very_many
def test_what_is_reported_as_stuck_in_the_kernel_is_stuck(seed: int) -> None:
    found = judgement(random_world(seed))

    event(found.diagnosis.verdict)
    assert not list(found.errors()), str(found)


@given(seeds)
@very_many
def test_a_world_in_which_nothing_can_move_is_found(seed: int) -> None:
    world = random_world(seed)
    if world.may_move():
        return

    found = judgement(world)

    event(found.diagnosis.verdict)
    assert found.is_found, str(found)


@given(seeds, st.integers(0, 7))
@very_many
def test_a_process_that_could_not_be_read_may_move(seed: int, hidden: int) -> None:
    world = random_world(seed)
    hidden %= len(world.processes)
    found = judgement(world, hidden)

    event(found.diagnosis.verdict)
    assert found.claimed <= world.with_moving(hidden).stuck(), f"{found}\nhidden: {hidden}"


def test_processes_that_read_from_each_other_are_stalled_without_an_end_of_their_chain() -> None:
    reads = [Process("driver", threads=[Action("receive", ((0, side),))]) for side in (0, 1)]

    found = judgement(World(0, reads, [Channel("tcp", ({0}, {1}))]))

    (finding,) = found.diagnosis.findings
    assert finding.summary == "2 drivers wait for each other, and nothing that could end it runs"
    assert str(finding.advice).startswith("Next: `dstack stacks 1000` ")
    assert [step.text.partition(" (")[0] for step in finding.explanation[:2]] == ["driver", "driver"]


def test_each_thread_of_a_child_may_end_the_child() -> None:
    """The child waits for a lock that its parent holds; its watchdog will end it."""
    parent = Process("driver", threads=[Action("Popen.wait", other=1)])
    child = Process("popen", 0, [Action("flock", other=0), Action("sleep")])
    alone = Process("popen", 0, [Action("flock", other=0)])

    verdicts = [judgement(World(0, [parent, one], lock_holders=[[0]])).diagnosis.verdict for one in (child, alone)]

    assert verdicts == ["running", "deadlock"]


def test_a_program_without_a_known_wait_may_act_at_the_end_of_a_pipe_that_it_has() -> None:
    reader = Process("driver", threads=[Action("receive", ((0, 0),))])
    locks = Process("driver", threads=[Action("flock", other=0)])
    program = Process("sleep", 0, [Action("sleep")])
    pipes = [Channel("pipe", ({0}, writers)) for writers in ({1}, {1, 2})]

    verdicts = [judgement(World(0, [reader, locks, program], [pipe], [[0]])).diagnosis.verdict for pipe in pipes]

    assert verdicts == ["deadlock", "running"]


def test_a_job_is_not_stalled_while_a_person_may_type_or_a_loop_writes() -> None:
    reads = [Process("driver", threads=[Action("receive", ((0, side),))]) for side in (0, 1)]
    wire = Channel("tcp", ({0}, {1}))

    def verdict(action: Action) -> str:
        return judgement(World(0, [*reads, Process("driver", threads=[action])], [wire])).diagnosis.verdict

    assert [verdict(Action(does)) for does in ("terminal", "work", "watch file")] == ["running", "running", "stalled"]
