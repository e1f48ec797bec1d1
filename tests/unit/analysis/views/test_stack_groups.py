"""All stacks in groups: by class, by ranks with equal stacks, by process; of one job, and with weights."""

from __future__ import annotations

import pytest

from dstack.analysis.stacks.weighted_stacks import WeightedStacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.stack_groups import By, ChosenStacks, Position
from dstack.errors import UsageError
from dstack.files.snapshot_file import load
from tests.paths import RECORDED_CLUSTERS
from tests.unit.scenes import JOB, Scene

MESH = RECORDED_CLUSTERS / "torch-mesh-ray-2.60.json.gz"
OTHER_JOB = "02000000"


def crowd() -> Scene:
    """Two drivers of two jobs; one waits for three actors of a class, of which one computes and two wait."""
    scene = Scene()
    driver, other = scene.driver(), scene.driver(job_id=OTHER_JOB)
    trainers = [scene.actor("Trainer") for _ in range(3)]
    calls = [scene.call(actor, "step", by=driver) for actor in trainers]
    for actor, call in zip(trainers, calls, strict=True):
        actor.runs(call)
    trainers[0].computes()
    for actor in trainers[1:]:
        actor.is_in("threading.Event.wait", "0x1")
    driver.gets(*calls)
    other.is_in("queue.Queue.get", "0x2")
    return scene


def chosen(scene: Scene, **how: object) -> ChosenStacks:
    return ChosenStacks(AnalysedSnapshot.of(scene.snapshot()), **how)  # type: ignore[arg-type]


def counts(stacks: ChosenStacks, by: By) -> dict[str, int]:
    return {group.name: len(group.executions) for group in stacks.groups(by)}


def test_classes_with_most_stacks_come_first() -> None:
    found = counts(chosen(crowd()), "class")

    assert next(iter(found.items())) == ("actor Trainer", 3)
    assert sum(found.values()) == 5


def test_a_group_knows_where_its_executions_are() -> None:
    trainers, *_ = ChosenStacks(AnalysedSnapshot.of(load(MESH))).groups("class")

    assert trainers.positions == [
        (Position("all_reduce of torch.distributed", "/srv/app/mesh.py", 20), 3),
        (Position("Trainer.step", "/srv/app/mesh.py", 19), 1),
    ]


def test_only_the_stacks_of_one_job_are_chosen() -> None:
    scene = crowd()

    mine = chosen(scene, job=JOB)

    assert (len(chosen(scene).executions), len(mine.executions)) == (5, 4)
    assert {one.peer_group.job_id for one in mine.executions} == {JOB}
    assert sum(counts(mine, "process").values()) == 4
    with pytest.raises(UsageError):
        chosen(scene, job="no such job")


def test_ranks_with_equal_stacks_are_one_group_and_those_without_a_rank_the_last() -> None:
    stacks = ChosenStacks(AnalysedSnapshot.of(load(MESH)))

    assert counts(stacks, "rank") == {"ranks 0-2 of actor Trainer": 3, "rank 3 of actor Trainer": 1, "no rank": 1}
    assert [outlier.words for outlier in stacks.outliers.values()] == [
        "rank 3 is in other code than ranks 0-2 (all of stage=train)"
    ]


def test_each_process_is_a_group() -> None:
    stacks = ChosenStacks(AnalysedSnapshot.of(load(MESH)))

    found = counts(stacks, "process")
    assert len(found) == 5
    assert all(count == 1 and ", pid " in name for name, count in found.items())


@pytest.mark.parametrize("by", ["class", "rank", "process"])
@pytest.mark.parametrize("whole", [False, True])
def test_weights_are_the_numbers_of_stacks(by: By, whole: bool) -> None:
    stacks = ChosenStacks(AnalysedSnapshot.of(load(MESH)), whole=whole)

    weighted = stacks.weighted(by)
    assert isinstance(weighted, WeightedStacks)
    assert weighted.weight == len(stacks.executions) == sum(counts(stacks, by).values())
    assert weighted.unit == "executions"
