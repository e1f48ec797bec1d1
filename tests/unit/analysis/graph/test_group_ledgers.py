"""The ledgers of process groups: who has entered a collective, and how members first differ."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dstack.analysis.graph.group_ledgers import Difference, GroupLedgers
from dstack.analysis.graph.group_members import group_id
from dstack.observed.calls import GroupCall, ProcessGroup
from dstack.observed.ledgers import Collective, GroupLedger
from dstack.observed.processes import Frame, Process

Call = tuple[str, int]
"""An operation and the line that calls it."""
WORLD = "tcp://10.0.0.1:29500"
BASE = 1_800_000_000.0


def group(rank: int, size: int) -> ProcessGroup:
    return ProcessGroup(library="torch.distributed", world=WORLD, name="0", rank=rank, ranks=tuple(range(size)))


def ledgers(calls: Mapping[int, Sequence[Call]], **known: Any) -> GroupLedgers:
    """The ledgers of ranks that have made these calls; ``known`` are further fields, by rank or for all."""
    lines = sorted({line for made in calls.values() for _, line in made})
    kinds = sorted({call for made in calls.values() for call in made})
    frames = [Frame(function="train", file="train.py", line=line, origin="user") for line in lines]
    collectives = tuple(Collective(operation=operation, stack=lines.index(line)) for operation, line in kinds)
    processes = {}
    for rank, made in calls.items():
        own = {key: value[rank] if isinstance(value, Mapping) else value for key, value in known.items()}
        ledger = GroupLedger(
            group=0,
            backend="gloo",
            entered=len(made),
            recorded=len(made),
            calls=tuple(kinds.index(call) for call in made),
            entered_at=BASE,
        )
        processes[str(rank)] = Process(
            pid=rank + 1,
            started_at=0.0,
            process_groups=(group(rank, len(calls)),),
            ledgers=(dataclasses.replace(ledger, **own),),
            collectives=collectives,
        )
    snapshot = SimpleNamespace(frames=frames, stacks=[(at,) for at in range(len(frames))], taken_at=BASE)
    index: Any = SimpleNamespace(processes=processes, snapshot=snapshot)
    return GroupLedgers(index)


def difference(calls: Mapping[int, Sequence[Call]], **known: Any) -> Difference | None:
    return ledgers(calls, **known).difference(group_id(group(0, len(calls))))


def facts(found: Difference | None) -> tuple[str, tuple[int, ...], int, int] | None:
    return (found.kind, found.ranks, found.number, found.shift) if found else None


LOOP = [("all_reduce", 1), ("broadcast", 2)] * 3
LINES = [("all_reduce", line) for line in range(1, 9)]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (LINES, None),
        (LINES[:-1], ("behind", (2,), 8, -1)),
        ([*LINES, ("all_reduce", 9)], ("ahead", (2,), 9, 1)),
        (LINES[:3] + LINES[4:], ("left out", (2,), 4, -1)),
        (LINES[:3] + LINES[5:], ("left out", (2,), 4, -2)),
        ([*LINES[:3], ("all_reduce", 30), *LINES[3:]], ("added", (2,), 4, 1)),
        ([*LINES[:3], ("broadcast", 4)], ("operation", (2,), 4, 0)),
    ],
    ids=["equal", "behind", "ahead", "left out", "two left out", "added", "another operation"],
)
def test_the_first_difference_of_one_rank(own: list[Call], expected: tuple[object, ...] | None) -> None:
    found = difference({0: LINES, 1: LINES, 2: own, 3: LINES})

    assert facts(found) == expected
    assert found is None or found.is_clear


def test_lines_that_only_some_ranks_have_are_no_difference() -> None:
    """A branch on the rank: each side calls the operation at its own line."""
    there, here = [("broadcast", 5), ("all_reduce", 7)] * 3, [("broadcast", 9), ("all_reduce", 7)] * 3

    assert facts(difference({0: there, 1: here, 2: here})) is None
    assert facts(difference({0: there, 1: here, 2: here[:-1]})) == ("behind", (2,), 6, -1)


def test_as_many_ranks_on_either_side_leave_open_which_are_wrong() -> None:
    found = difference({0: LINES, 1: LINES[:4]})

    assert facts(found) == ("behind", (1,), 5, -4)
    assert found is not None
    assert not found.is_clear


def test_a_rank_that_has_entered_nothing_is_behind() -> None:
    assert facts(difference({0: LINES[:1], 1: LINES[:1], 2: []})) == ("behind", (2,), 1, -1)
    assert difference({0: [], 1: [], 2: []}) is None


def test_calls_of_an_equal_loop_show_only_the_count() -> None:
    same = [("all_reduce", 1)] * 6

    assert facts(difference({0: same, 1: same[:-1], 2: same})) == ("behind", (1,), 6, -1)


@pytest.mark.parametrize("operation", ["all_reduce", "all_to_all"])
def test_sizes_differ_only_where_they_must_be_equal(operation: str) -> None:
    made = ledgers({0: [(operation, 1)], 1: [(operation, 1)], 2: [(operation, 2)]})
    for process in made._index.processes.values():
        own = tuple(
            dataclasses.replace(one, sizes=((4 + one.stack,),), types=("float32",)) for one in process.collectives
        )
        object.__setattr__(process, "collectives", own)

    found = made.difference(group_id(group(0, 3)))

    assert facts(found) == (("sizes", (2,), 1, 0) if operation == "all_reduce" else None)


def call(rank: int, size: int, operation: str = "all_reduce") -> GroupCall:
    return GroupCall(operation=operation, group=group(rank, size))


def test_a_member_has_entered_a_call_if_it_has_counted_as_many() -> None:
    made = ledgers({0: LINES, 1: LINES, 2: LINES[:-1]})

    assert made.number_of(call(0, 3)) == 8
    assert made.entered(call(0, 3), 8) == {1: True, 2: False}
    assert made.entered(call(2, 3), 7) == {0: True, 1: True}


def test_another_call_under_the_number_is_decided_only_when_all_have_counted_as_many() -> None:
    other = [*LINES[:-1], ("broadcast", 8)]

    assert ledgers({0: LINES, 1: other, 2: LINES}).entered(call(0, 3), 8) == {1: False, 2: True}
    assert ledgers({0: LINES, 1: other, 2: LINES[:-1]}).entered(call(0, 3), 8) == {1: True, 2: False}


def test_a_wait_for_an_earlier_collective_is_for_the_first_that_has_not_ended() -> None:
    made = ledgers({0: LINES, 1: LINES}, open=(6, 7, 8))

    assert made.number_of(call(0, 2, "Work.wait")) == 6
    assert made.number_of(call(0, 2, "recv")) is None
    assert made.number_of(call(0, 2, "new_group")) is None


def test_a_collective_that_ends_for_all_at_once_waits_for_each_rank() -> None:
    made = ledgers({0: [("_all_gather_base", 1), ("broadcast", 2)], 1: [("_all_gather_base", 1)]})

    assert not made.is_for_all(call(0, 2), 2)
    assert made.is_for_all(call(1, 2), 1)


def test_a_rank_that_comes_last_nearly_always_is_late() -> None:
    ages = tuple(range(9_000, -1, -1_000))
    late = {0: BASE, 1: BASE + 0.3, 2: BASE}
    made = ledgers(dict.fromkeys(range(3), LINES + LINES[:2]), entered_at=late, ages_ms=ages)

    found = made.late_rank(group_id(group(0, 3)))

    assert found is not None
    assert (found.rank, found.times, found.of) == (1, 10, 10)
    assert found.late_s == pytest.approx(0.3, abs=1e-3)
    assert found.every_s == pytest.approx(1.0, abs=1e-3)


def test_ranks_that_come_last_in_turn_are_not_late() -> None:
    ages = {rank: tuple(1_000 * n + 300 * (n % 3 == rank) for n in range(9, -1, -1)) for rank in range(3)}
    made = ledgers(dict.fromkeys(range(3), LINES + LINES[:2]), entered_at=BASE + 10, ages_ms=ages)

    assert made.late_rank(group_id(group(0, 3))) is None


def test_one_mutation_of_distinct_lines_is_found() -> None:
    """Each call has its own line, so what one rank left out or added is known if any call of it comes later."""
    for seed in range(300):
        check_one_mutation(random.Random(seed))


def check_one_mutation(chosen: random.Random) -> None:
    size, count = chosen.randint(3, 6), chosen.randint(4, 30)
    calls = [(chosen.choice(["all_reduce", "broadcast", "barrier"]), line) for line in range(count)]
    rank, at, is_added = chosen.randrange(size), chosen.randrange(count - 2), chosen.random() < 0.5
    own = [*calls[:at], (calls[at][0], 1_000), *calls[at:]] if is_added else calls[:at] + calls[at + 1 :]

    found = difference({one: own if one == rank else calls for one in range(size)})

    assert found is not None
    assert found.ranks == (rank,)
    assert found.number == at + 1 or (found.kind, found.number) == ("operation", first_other(own, calls))


def first_other(own: Sequence[Call], calls: Sequence[Call]) -> int:
    """The number of the first collective with another operation."""
    return next(at + 1 for at, (mine, other) in enumerate(zip(own, calls, strict=False)) if mine[0] != other[0])


def test_members_that_call_another_root_differ() -> None:
    """All have entered the second collective, which two of them still wait in, each for another root."""
    lines = [("barrier", 1), ("scatter", 3), ("all_reduce", 4)]
    made = ledgers({0: [("barrier", 1), ("scatter", 2)], 1: lines, 2: lines[:2], 3: lines})
    scatter = [GroupCall(operation="scatter", group=group(rank, 4), peer=peer) for rank, peer in ((0, 1), (2, 2))]

    found = made.with_another_root(scatter)

    assert facts(found) == ("root", (0,), 2, 0)
    assert made.with_another_root(scatter[:1]) is None


def test_late_members_are_described_by_what_they_have_not_entered() -> None:
    made = ledgers({0: LINES, 1: LINES[:5], 2: LINES[:5], 3: LINES[:5]})

    found = made.behind(group_id(group(0, 4)), [3])

    assert facts(found) == ("behind", (3,), 6, -3)
    assert found.theirs == Collective(operation="all_reduce", stack=5)


def test_a_rank_at_another_line_is_told_where_no_shift_shows() -> None:
    """The step of one rank has no backward pass, whose calls the others could not finish without it."""
    step = [("all_gather", 1), ("all_gather", 1), ("all_gather", 2), ("all_gather", 2), ("all_reduce", 2)]
    own = [*step, *step[:2], *step[:3]]

    found = difference({0: step * 2, 1: step * 2, 2: own})

    assert facts(found) == ("line", (2,), 8, 0)
    assert found is not None
    assert (found.own, found.theirs) == (
        Collective(operation="all_gather"),
        Collective(operation="all_gather", stack=1),
    )
