"""Random worlds of real processes: what the probe and the analysis say about them is true, and they miss little."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dstack.probes.node import system_calls
from dstack.probes.node.procfs import open_files
from tests.fuzzing.effort import IS_SEARCH, tries
from tests.kernel_worlds.judge import Judgement, Reading, judge
from tests.kernel_worlds.random_worlds import random_world
from tests.kernel_worlds.stage import staged
from tests.kernel_worlds.world import Action, Channel, Does, Process, World

AT_ONCE = 8
"""The worlds that run at the same time."""
WORLDS = AT_ONCE * tries(30)
WATCHED_S = 1.0
FOUND = 0.95
"""The least share of the worlds without any movement that must be found."""


def judgements(worlds: list[World], folder: Path) -> Iterator[Judgement]:
    """The judgements on worlds that run at the same time."""
    with contextlib.ExitStack() as stack:
        running = [staged(world, folder / f"{world.seed}") for world in worlds]
        readings = [Reading(stack.enter_context(one)) for one in running]
        for reading in readings:
            reading.sample()
        for reading in readings:
            time.sleep(max(0.0, WATCHED_S - reading.age_s))
            reading.sample()
        yield from map(judge, readings)


@pytest.mark.timeout(120 + 15 * WORLDS)
def test_no_thread_that_can_move_is_reported_and_stuck_worlds_are_found(tmp_path: Path) -> None:
    """A failure names the world, whose number is its seed for :func:`random_world`."""
    first = random.randrange(2**32) if IS_SEARCH else 0
    missed: list[Judgement] = []
    stuck = 0
    for start in range(first, first + WORLDS, AT_ONCE):
        worlds = list(map(random_world, range(start, start + AT_ONCE)))
        for found in judgements(worlds, tmp_path / f"{start}"):
            assert not list(found.errors()), str(found)
            stuck += not found.world.may_move()
            missed += [found] if not found.world.may_move() and not found.is_found else []

    assert len(missed) <= (1 - FOUND) * stuck, "\n".join(map(str, missed))


def ring(*others: Process, writers: set[int], lock_holders: list[int]) -> World:
    """One process reads what the other should send, which waits for a file lock of the first."""
    reads = Process("driver", threads=[Action("receive", ((0, 0),))])
    locks = Process("driver", threads=[Action("flock", other=0)])
    return World(0, [reads, locks, *others], [Channel("pipe", ({0}, writers))], [lock_holders])


CAN_MOVE = {
    "nothing": ring(writers={1}, lock_holders=[0]),
    "a fork that shares the file lock": ring(Process("fork", 0, [Action("sleep")]), writers={1}, lock_holders=[0, 2]),
    "a program that has the pipe": ring(Process("sleep", 0, [Action("sleep")]), writers={1, 2}, lock_holders=[0]),
    "a process of no job that has the pipe": ring(
        Process("outside", threads=[Action("sleep")]), writers={1, 2}, lock_holders=[0]
    ),
}


def test_two_processes_are_a_deadlock_only_if_nothing_else_can_act_at_their_ends(tmp_path: Path) -> None:
    worlds = [replace(world, seed=number) for number, world in enumerate(CAN_MOVE.values())]

    for mover, found in zip(CAN_MOVE, judgements(worlds, tmp_path), strict=True):
        assert not list(found.errors()), str(found)
        assert (found.diagnosis.verdict == "deadlock") == (mover == "nothing"), f"{mover}: {found}"


def test_a_mover_beyond_the_descriptors_and_holders_that_are_followed_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_calls, "MAX_ENDS", 2)
    monkeypatch.setattr(open_files, "MAX_HOLDERS", 1)
    polls = Process("driver", threads=[Action("poll", ((0, 0), (1, 0), (2, 0)))])
    locks, moves = Process("driver", threads=[Action("flock", other=0)]), Process("driver", threads=[Action("sleep")])
    by_descriptors = [Channel("pipe", ({0}, {1 + (wire == 2)})) for wire in range(3)]
    by_holders = [Channel("pipe", ({0}, {1, 2})) for _ in range(3)]
    worlds = [World(n, [polls, locks, moves], wires, [[0]]) for n, wires in enumerate((by_descriptors, by_holders))]

    found = list(judgements(worlds, tmp_path))

    assert [one.diagnosis.verdict for one in found] == ["running", "running"], "\n".join(map(str, found))


def test_a_connection_that_is_not_accepted_fails_in_the_end(tmp_path: Path) -> None:
    connects = Process("driver", threads=[Action("connect", ((0, 0),))])
    locks = Process("driver", threads=[Action("flock", other=0)])

    (found,) = judgements([World(0, [connects, locks], [Channel("backlog", ({0}, {1}))], [[0]])], tmp_path)

    assert not list(found.errors()), str(found)
    assert found.diagnosis.verdict == "running"


def test_a_job_is_not_stalled_while_a_thread_moves_or_will(tmp_path: Path) -> None:
    moves: tuple[Does, ...] = ("sleep", "timer", "terminal", "work", "compute")
    reads = [Process("driver", threads=[Action("receive", ((0, side),))]) for side in (0, 1)]
    wire = Channel("tcp", ({0}, {1}))
    moving = [
        World(number, [*reads, Process("driver", threads=[Action(does)])], [wire]) for number, does in enumerate(moves)
    ]
    still = World(len(moves), reads, [wire])

    found = list(judgements([*moving, still], tmp_path))

    verdicts = [one.diagnosis.verdict for one in found]
    assert verdicts == [*["running"] * len(moves), "stalled"], "\n".join(map(str, found))
