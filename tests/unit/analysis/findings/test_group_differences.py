"""How a finding names the ranks that differ first."""

from __future__ import annotations

import dataclasses

import pytest

from dstack.model.diagnosis import RankDifference
from dstack.observed.calls import ProcessGroup
from dstack.observed.ledgers import Collective, GroupLedger
from tests.unit.analysis.graph.rank_scenes import Gang, gang

BEGUN_AT = 1_000.0


def subgroup(rank: int, number: str, ranks: tuple[int, ...], description: str) -> ProcessGroup:
    it = gang(4).groups[0]
    return dataclasses.replace(it, rank=rank, name=number, ranks=ranks, description=description)


def difference(it: Gang) -> RankDifference:
    found = it.diagnose().findings[0].difference
    assert found is not None
    return found


def test_a_rank_that_makes_groups_in_another_order_is_named() -> None:
    """Rank 1 has made columns first, which is of others alone, so that its rows have another number."""
    it = gang(4)
    it.ranks[1].collects("new_group", subgroup(1, "2", (0, 1, 2), "rows"))
    it.ranks[0].collects("new_group", subgroup(0, "1", (0, 1, 2), "rows"))
    it.ranks[2].collects("new_group", subgroup(2, "1", (0, 1, 2), "rows"))
    it.collect((3,))

    found = difference(it)

    assert (found.kind, found.ranks, found.number, found.group) == ("order", (1,), 2, "rows")
    assert found.text.startswith("rank 1 makes groups in another order: group rows is its group 2 at ")
    assert found.text.endswith(", group 1 of ranks 0, 2")


def test_groups_that_are_made_already_count_too() -> None:
    it = gang(4).collect((1, 3))
    it.ranks[2].collects("new_group", subgroup(2, "1", (1, 2), "rows"))
    it.ranks[0].collects("new_group", subgroup(0, "2", (0, 3), "columns"))
    it.ranks[1].is_member(subgroup(1, "2", (1, 2), "rows"))
    it.ranks[3].is_member(subgroup(3, "2", (0, 3), "columns"))

    found = difference(it)

    assert (found.kind, found.ranks, found.is_clear) == ("order", (1,), True)


def with_calls(it: Gang, *counts: int, **known: object) -> Gang:
    for process, count in zip(it.ranks, counts, strict=True):
        ledger = GroupLedger(
            group=0, backend="gloo", entered=count, recorded=count, calls=(0,) * count, entered_at=BEGUN_AT
        )
        sizes = Collective(operation="all_reduce", sizes=((4,),), types=("float32",))
        process.known |= {"ledgers": (ledger,), "collectives": (sizes,), **known}
    return it


@pytest.mark.parametrize("sizes", [((4,),), ((8,),)])
def test_other_sizes_are_shown_on_both_sides(sizes: tuple[tuple[int, ...], ...]) -> None:
    it = with_calls(gang(4).collect((0, 1, 2, 3)), 5, 5, 5, 5)
    it.ranks[3].known["collectives"] = (Collective(operation="all_reduce", sizes=sizes, types=("float32",)),)

    findings = it.diagnose().findings
    found = findings[0].difference

    if sizes == ((4,),):
        assert found is None
        return
    assert found is not None
    assert (found.kind, found.ranks, findings[0].kind) == ("sizes", (3,), "deadlock")
    assert found.text.startswith("rank 3 calls all_reduce of 8 float32 at app.py:10 as number 1 of group default_pg, ")
    assert "the others all_reduce of 4 float32 at app.py:10" in found.text


def test_a_collective_that_no_known_call_waits_for_is_a_remark() -> None:
    """As on a GPU, where the host runs ahead of its collectives."""
    it = with_calls(gang(3), 5, 5, 4)
    for process in it.ranks:
        process.computes()
        ledger = process.known["ledgers"][0]
        process.known["ledgers"] = (dataclasses.replace(ledger, backend="nccl", open=(ledger.entered,)),)

    remarks = [step.text for step in it.diagnose().remarks]

    assert remarks == [
        "Number 4 of group default_pg has not ended, in no wait that dstack knows: rank 2 differs from the others "
        "since number 5"
    ]


def test_groups_of_the_same_ranks_may_be_made_again() -> None:
    """All members have made two such groups, and some make a third one."""
    it = gang(3)
    for rank, process in enumerate(it.ranks):
        process.is_member(*(subgroup(rank, number, (0, 1, 2), "undefined") for number in ("1", "2")))
    it.ranks[0].collects("new_group", subgroup(0, "3", (0, 1, 2), "undefined"))
    it.collect((1, 2))

    assert it.diagnose().findings[0].difference is None
