"""Processes that meet to make a process group: what keeps them apart, and who has not come."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dstack.observed.calls import Holder
from tests.unit.analysis.graph.rank_scenes import Gang, gang, only_finding
from tests.unit.scenes import group_of

INIT = "init_process_group"
HERE, THERE = "tcp://10.0.0.1:29500", "tcp://10.0.0.1:29501"


def meeting(count: int) -> Gang:
    """Actors that are in no group, each of which runs a call."""
    it = gang(count)
    for rank in it.ranks:
        rank.memberships.clear()
    return it


def comes(it: Gang, process: int, rank: int, size: int, world: str = HERE, **known: Any) -> None:
    """A process waits for the other ranks."""
    it.ranks[process].collects(INIT, group_of(rank, *range(size), name="", world=world), mark="", **known)


def test_ranks_at_different_addresses_never_meet() -> None:
    it = meeting(3)
    comes(it, 0, 0, 3, listener=Holder(pid=it.ranks[0].worker.pid))
    for rank in (1, 2):
        comes(it, rank, rank, 3, THERE, is_refused=True)

    finding = only_finding(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert finding.summary.endswith(
        "and the ranks do not agree on the address where they meet: rank 0 listens at 10.0.0.1:29500; "
        "ranks 1-2 connect to 10.0.0.1:29501, where nothing listens"
    )
    assert "MASTER_ADDR" in str(finding.advice)
    assert "no process that the job has not started comes as" in finding.assumed[0]


def test_a_driver_that_runs_may_bring_the_ranks() -> None:
    it = meeting(2)
    comes(it, 0, 0, 2)
    comes(it, 1, 1, 2, THERE)
    it.driver.computes()

    assert not it.diagnose().is_stuck


def test_two_worlds_with_the_same_ranks_are_not_apart() -> None:
    """Two runs of which each has a rank 0 do not look for each other."""
    it = meeting(2)
    comes(it, 0, 0, 2)
    comes(it, 1, 0, 2, THERE)

    diagnosis = it.diagnose()

    assert not diagnosis.is_stuck
    assert "do not agree" not in only_finding(diagnosis).summary


def test_a_rank_that_two_processes_have() -> None:
    it = meeting(3)
    for process, rank in enumerate((0, 1, 1)):
        comes(it, process, rank, 3)

    finding = only_finding(it.diagnose())

    assert (finding.kind, finding.confirmed) == ("deadlock", False)
    assert "but 2 processes are rank 1 (actor Rank " in finding.summary
    assert finding.summary.endswith(") and none is rank 2")
    assert "a rank of its own" in str(finding.advice)


def test_with_a_rank_twice_the_missing_one_may_still_come() -> None:
    """Fewer processes than ranks: the missing process may be on its way, as one of another job."""
    it = meeting(2)
    for process in (0, 1):
        comes(it, process, 1, 3)

    assert not it.diagnose().is_stuck


@pytest.mark.parametrize("world", ["tcp://127.0.0.1:29500", "tcp://localhost:29500"])
def test_a_loopback_address_is_another_one_on_each_node(world: str) -> None:
    it = meeting(2)
    for process in (0, 1):
        comes(it, process, 1, 2, world)
    it.ranks[1].worker = replace(it.ranks[1].worker, node_id=it.scene.node(CPU=4.0).node_id)

    assert not it.diagnose().is_stuck


def test_world_sizes_that_differ() -> None:
    it = meeting(4)
    for rank, size in enumerate((4, 4, 8, 4)):
        comes(it, rank, rank, size)

    summary = only_finding(it.diagnose()).summary

    assert summary.endswith("and their world sizes differ: 4 for ranks 0-1, 3 and 8 for rank 2")


def test_a_size_counts_also_of_ranks_that_have_made_their_group() -> None:
    it = meeting(4)
    for rank, size in ((2, 8), (3, 4)):
        comes(it, rank, rank, size)
    for rank in (0, 1):
        it.ranks[rank].is_member(group_of(rank, *range(4), world=HERE))
        it.returns(rank)

    finding = only_finding(it.diagnose())

    assert "their world sizes differ: 4 for ranks 0-1, 3 and 8 for rank 2" in finding.summary
    assert "WORLD_SIZE" in str(finding.advice)


def test_nothing_listens() -> None:
    it = meeting(2)
    comes(it, 1, 1, 2, is_refused=True)
    it.returns(0)
    it.ranks[0].is_member(group_of(0, 0, 1, world=THERE))

    assert "nothing listens at 10.0.0.1:29500" in only_finding(it.diagnose()).summary


def test_a_listener_of_no_job_is_named() -> None:
    it = meeting(2)
    comes(it, 0, 0, 2)
    comes(it, 1, 1, 2, THERE, listener=Holder(pid=7, name="nginx"))

    assert "rank 1 connects to 10.0.0.1:29501, where nginx (pid 7) listens" in only_finding(it.diagnose()).summary


def test_a_rank_that_has_not_come_is_named_with_its_line() -> None:
    it = meeting(4)
    for rank in (0, 1, 3):
        comes(it, rank, rank, 4)
    it.ranks[2].computes()

    finding = only_finding(it.diagnose())

    assert finding.kind == "running"
    line = it.ranks[2].threads[0].line
    assert f"3 of 4 ranks are in {INIT} at 10.0.0.1:29500; rank 2 (Rank.train) runs " in (finding.summary)
    assert finding.summary.endswith(f":{line}")
