"""Scenes of actors that are the ranks of one process group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dstack.model.diagnosis import Diagnosis, Finding
from dstack.model.snapshot import FailedTask
from dstack.observed.calls import ProcessGroup
from tests.unit.scenes import JOB, Call, Scene, SceneProcess, group_of


@dataclass
class Gang:
    """Actors that are the ranks of one process group; each runs a call of the driver, which waits for all."""

    scene: Scene
    driver: SceneProcess
    ranks: list[SceneProcess]
    calls: list[Call]
    groups: list[ProcessGroup]

    def diagnose(self) -> Diagnosis:
        """The diagnosis after two samples."""
        return self.scene.sample().second_sample().diagnose()

    def collect(self, ranks: Sequence[int], operation: str = "all_reduce", **known: Any) -> Gang:
        for rank in ranks:
            self.ranks[rank].collects(operation, self.groups[rank], **known)
        return self

    def returns(self, rank: int) -> Gang:
        """A rank ends its call, whose value is available."""
        self.ranks[rank].idles()
        self.driver.submitted.remove(self.calls[rank])
        self.driver.has(self.calls[rank])
        return self

    def fails(self, rank: int, *, is_held: bool = True) -> Gang:
        """A rank's call has raised an exception."""
        task = self.calls[rank].task
        self.returns(rank)
        self.scene.failed.append(
            FailedTask(
                task_id=task.task_id,
                name="Rank.train",
                job_id=JOB,
                error_type="TASK_EXECUTION_EXCEPTION",
                error="ValueError: 3",
                actor_id=self.ranks[rank].actor_id,
                is_held=is_held,
            )
        )
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


def only_finding(diagnosis: Diagnosis) -> Finding:
    (finding,) = diagnosis.findings
    return finding


def with_reward() -> tuple[Gang, SceneProcess, Call]:
    """Ranks 0 to 2 in all_reduce, rank 3 in ray.get on an actor that calls rank 0."""
    it = gang(4)
    reward = it.scene.actor("Reward", owner_id=it.driver.worker_id).works_for()
    score = it.scene.call(reward, "score", by=it.ranks[3])
    weight = it.scene.call(it.ranks[0], "weight", by=reward)
    reward.runs(score).gets(weight)
    it.collect((0, 1, 2)).ranks[3].gets(score)
    return it, reward, weight
