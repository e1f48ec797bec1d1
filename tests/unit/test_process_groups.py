"""Calls on process groups: what they wait for, which members have to come, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from dstack.diagnosis import Diagnosis, Finding
from dstack.model import FailedTask, ProcessGroup
from tests.unit.scenes import Call, Proc, Scene, group_of


@dataclass
class Gang:
    """Actors that are the ranks of one process group, each in a call of the driver, which waits for all."""

    scene: Scene
    driver: Proc
    ranks: list[Proc]
    calls: list[Call]
    groups: list[ProcessGroup]

    def diagnose(self) -> Diagnosis:
        """By two samples."""
        return self.scene.look().look_again().diagnose()

    def collect(self, ranks: Sequence[int], operation: str = "all_reduce", **known: Any) -> Gang:
        for rank in ranks:
            self.ranks[rank].collects(operation, self.groups[rank], **known)
        return self

    def idles(self, rank: int) -> Gang:
        """A rank has returned."""
        proc, call = self.ranks[rank], self.calls[rank]
        proc.idles()
        self.driver.submitted.remove(call)
        self.calls[rank] = call
        self.driver.gets(*(one for one in self.calls if one is not call))
        return self


def gang(count: int, **known: Any) -> Gang:
    scene = Scene()
    driver = scene.driver()
    ranks = [scene.actor("Rank", owner_id=driver.worker_id) for _ in range(count)]
    groups = [group_of(rank, *range(count), **known) for rank in range(count)]
    calls = []
    for rank, group in zip(ranks, groups, strict=True):
        rank.tasks_read = True
        calls.append(scene.call(rank, "train", by=driver))
        rank.works_for().runs(calls[-1]).is_member(group)
    driver.gets(*calls)
    return Gang(scene, driver, ranks, calls, groups)


def only(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    return finding


def with_reward() -> tuple[Gang, Proc, Call]:
    """Ranks 0 to 2 in all_reduce, rank 3 in ray.get on an actor that calls rank 0."""
    it = gang(4)
    reward = it.scene.actor("Reward", owner_id=it.driver.worker_id).works_for()
    score = it.scene.call(reward, "score", by=it.ranks[3])
    weight = it.scene.call(it.ranks[0], "weight", by=reward)
    reward.runs(score).gets(weight)
    it.collect((0, 1, 2)).ranks[3].gets(score)
    return it, reward, weight


def test_a_rank_that_waits_for_one_in_the_collective_is_a_deadlock() -> None:
    it, reward, weight = with_reward()

    diagnosis = it.diagnose()

    finding = only(diagnosis)
    assert (diagnosis.verdict, finding.confirmed, finding.assumed) == ("deadlock", True, ())
    assert {it.ranks[0].key, it.ranks[3].key, reward.key, weight.key} <= set(finding.members)
    assert {it.ranks[1].key, it.ranks[2].key} <= {*finding.members, *finding.blocked_behind}
    assert finding.summary.startswith(
        "ranks 0-2 are in all_reduce of group default_pg; rank 3 is in ray.get on Reward.score, which calls rank 0"
    )


def test_a_slow_reward_is_waited_for() -> None:
    it, reward, _ = with_reward()
    reward.computes()

    diagnosis = it.diagnose()

    finding = only(diagnosis)
    assert diagnosis.verdict == "blocked"
    assert finding.final_blockers[0].vertex == reward.key
