"""Ranks, dimensions and labels: read from process groups, shown, grouped, filtered, and summarised for parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import msgspec
import pytest

from dstack.analysis.diagnose import diagnose
from dstack.analysis.index.ranks import LONGEST, NO_RANKS, SHOWN_LABELS, Ranks, ranks_of
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.stacks.app_threads import Execution
from dstack.analysis.stacks.stack_tree import ByRanks, TextFilter, grouping_in_words, groupings, merge
from dstack.analysis.views.all_stacks import Stacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.observed.calls import ProcessGroup
from dstack.observed.processes import Process
from dstack.report.check_json import check_json
from dstack.report.text import report_text
from tests.unit.scenes import Scene, SceneProcess
from tests.unit.scenes.ranks import SIZE, WORLD, group, groups_of, ranked, training


def process(*groups: ProcessGroup, rank: int | None = None) -> Process:
    return Process(pid=7, started_at=1.0, process_groups=groups, rank=rank)


def stacks_of(scene: Scene) -> Stacks:
    snapshot = scene.snapshot()
    return Stacks(SampleIndex(snapshot, snapshot.samples[0]), diagnose(snapshot).vertices)


def steps(stacks: Stacks) -> list[Execution]:
    return [one for one in stacks.running().executions if one.name == "Trainer.step"]


# Ranks and dimensions from process groups


def test_a_rank_has_coordinates_in_the_world_and_in_each_named_group() -> None:
    found = ranks_of(process(*groups_of(5)))

    assert (found.rank, found.world_size, found.world) == (5, SIZE, WORLD)
    assert found.dimensions == (("tp", 1), ("pp", 1), ("dp", 0)), "in the usual order"


def test_without_a_process_or_groups_there_are_no_ranks() -> None:
    assert ranks_of(None) == NO_RANKS
    assert ranks_of(process()) == NO_RANKS
    assert NO_RANKS.in_words == ""


@pytest.mark.parametrize("name", ["", "undefined", "12", "default", "mesh_default", "world", "MODEL_PARALLEL_GROUP"])
def test_a_group_without_a_name_of_its_own_is_no_dimension(name: str) -> None:
    assert ranks_of(process(group(1, (0, 1), name))).dimensions == ()


def test_megatron_groups_have_the_usual_dimension_names() -> None:
    assert ranks_of(process(group(3, (1, 3), "PIPELINE_MODEL_PARALLEL_GROUP"))).dimensions == (("pp", 1),)


def test_groups_of_ray_util_collective_are_dimensions_by_their_names() -> None:
    weights = ProcessGroup(library="ray.util.collective", world="", name="weights", rank=2, ranks=(0, 1, 2))
    default = dataclasses.replace(weights, name="default")

    assert ranks_of(process(weights, default)) == Ranks(rank=2, world_size=3, dimensions=(("weights", 2),))


def test_the_run_of_a_train_worker_is_its_worker_group() -> None:
    workers = ProcessGroup(library="ray.train", world="a1", name="workers", rank=1, ranks=(0, 1))
    splits = ProcessGroup(library="ray.data", world="b2", name="splits", rank=0, ranks=(0, 1))

    found = ranks_of(process(group(1, (0, 1), "default_pg"), workers, splits, rank=1))

    assert found == Ranks(rank=1, world_size=2, world="a1")


def test_a_dimension_of_two_groups_counts_only_where_they_agree() -> None:
    one, same, other = group(3, (1, 3), "mesh_dp"), group(3, (0, 3), "dp"), group(3, (3, 4), "mesh_dp")

    assert ranks_of(process(one, same)).dimensions == (("dp", 1),)
    assert ranks_of(process(one, other)).dimensions == ()


def test_a_group_that_does_not_have_its_own_member_is_left_out() -> None:
    assert ranks_of(process(group(9, (0, 1), "mesh_tp"))).dimensions == ()


# Words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (Ranks(rank=3), "rank 3"),
        (Ranks(rank=3, local_rank=3), "rank 3"),
        (Ranks(rank=3, local_rank=1), "rank 3 (local rank 1)"),
        (Ranks(rank=3, dimensions=(("tp", 1), ("dp", 0))), "rank 3 (tp 1, dp 0)"),
        (Ranks(rank=3, dimensions=(("tp", 1),), labels=(("stage", "rollout"),)), "rank 3 (tp 1, stage=rollout)"),
        (Ranks(labels=(("stage", "rollout"),)), "stage=rollout"),
        (Ranks(rank=0, dimensions=(("tp", 1),), labels=(("tp", "0"),)), "rank 0 (tp=0)"),
    ],
)
def test_ranks_in_words(ranks: Ranks, words: str) -> None:
    assert ranks.in_words == words


def test_long_and_many_labels_are_cut() -> None:
    many = Ranks(rank=1, labels=tuple((f"label{number}", "x" * 10_000) for number in range(100))).in_words

    assert many.endswith(f"… and {100 - SHOWN_LABELS} more)")
    assert len(many) < (SHOWN_LABELS + 1) * (LONGEST + 2)


# Reports


def test_the_report_names_the_rank_of_the_blocker() -> None:
    snapshot = training()[0].sample().second_sample().snapshot()

    analysed = AnalysedSnapshot.of(snapshot)
    text = " ".join(report_text(analysed, details=True).split())

    assert "(rank 3), " in analysed.diagnosis.findings[0].summary
    assert (
        'Not in this call: Trainer.step (actor Trainer "t3", rank 3 (tp 1, pp 0, dp 1), pid 9000, node 10.0.0.2)'
        in text
    )
    assert "7 of 8 Trainer.step calls (ranks 0-2, 4-7) wait in torch.distributed.all_reduce" in text
    assert '7 × Trainer.step ranks 0-2, 4-7, first: "t0", rank 0 (tp 0, pp 0, dp 0), pid' in text


def test_the_json_has_ranks_dimensions_and_labels_of_members() -> None:
    scene, (first, *_) = training()
    first.known["labels"] = {"stage": "rollout"}
    snapshot = scene.snapshot()

    printed = msgspec.json.decode(check_json(AnalysedSnapshot.of(snapshot)))

    members = {member["pid"]: member for member in printed["findings"][0]["members"]}
    own = members[first.worker.pid]
    assert (own["rank"], own["local_rank"], own["world_size"], own["world"]) == (0, 0, SIZE, WORLD)
    assert (own["dimensions"], own["labels"]) == ({"tp": 0, "pp": 0, "dp": 0}, {"stage": "rollout"})
    driver = members[scene.procs[0].worker.pid]
    assert (driver["rank"], driver["dimensions"], driver["labels"]) == (None, {}, {})


# Groups and filters


def test_ranks_can_be_grouped_by_present_dimensions() -> None:
    scene, (first, *_) = training()
    first.known["labels"] = {"stage": "rollout"}

    ways = groupings(stacks_of(scene).running().executions)

    assert [grouping_in_words(way) for way in ways[1:]] == [
        *("by class", "by node", "by job"),
        *("by rank", "by tp", "by pp", "by dp", "by stage", "by local_rank"),
    ]
    assert len(groupings(stacks_of(Scene()).running().executions)) == 4


def test_groups_of_a_dimension_or_label_are_the_first_level() -> None:
    scene, (first, *_) = training()
    first.known["labels"] = {"stage": "rollout"}
    executions = stacks_of(scene).running().executions

    assert _groups(executions, "tp") == [("tp 0", 4), ("tp 1", 4), ("no tp", 1)]
    assert _groups(executions, "stage") == [("no stage", 8), ("stage=rollout", 1)]


def test_ranks_are_ordered_as_numbers() -> None:
    scene = Scene()
    driver = scene.driver()
    for rank in reversed(range(12)):
        actor = scene.actor("Trainer")
        actor.known["rank"] = rank
        actor.runs(scene.call(actor, "step", by=driver))

    found = [name for name, _ in _groups(stacks_of(scene).running().executions, "rank")]

    assert [name for name in found if name != "no rank"] == [f"rank {rank}" for rank in range(12)]


def _groups(executions: Sequence[Execution], name: str) -> list[tuple[str, int]]:
    root = merge(executions, by=ByRanks(name))
    return [(branch.place.name, branch.count) for branch in root.children if branch.place]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("rank:3", [3]),
        ("RANK:3 trainer", [3]),
        ("tp:1 pp:0", [1, 3]),
        ("stage:rollout", [0]),
        ("stage=rollout", [0]),
        ("rank:3 tp:0", []),
        ("rank:", []),
        ("ank:3", []),
    ],
)
def test_a_filter_matches_whole_ranks_dimensions_and_labels(text: str, ranks: list[int]) -> None:
    scene, (first, *_) = training()
    first.known["labels"] = {"stage": "rollout"}
    stacks = stacks_of(scene)

    assert [one.ranks.rank for one in steps(stacks) if TextFilter(text).within(one)] == ranks
    assert len(stacks.found(TextFilter(text))) == len(ranks)


# Parts of a run


@pytest.mark.parametrize(
    ("is_chosen", "words"),
    [
        (lambda rank: True, "ranks 0-7"),
        (lambda rank: rank == 3, "rank 3"),
        (lambda rank: rank != 3, "ranks 0-2, 4-7"),
        (lambda rank: rank >= 4, "ranks 4-7 (all of pp 1)"),
        (lambda rank: rank % 2 == 1, "ranks 1, 3, 5, 7 (all of tp 1)"),
        (lambda rank: rank in (4, 5), "ranks 4-5 (all of pp 1, dp 0)"),
        (lambda rank: rank in (3, 4), "ranks 3-4"),
    ],
)
def test_a_part_of_a_run_is_named_by_its_unique_coordinates(is_chosen: Callable[[int], bool], words: str) -> None:
    stacks = stacks_of(training()[0])
    chosen = [one for one in steps(stacks) if one.ranks.rank is not None and is_chosen(one.ranks.rank)]

    assert stacks.ranks_in_words(chosen) == words


def test_a_part_with_an_unobserved_rank_is_not_a_whole_dimension() -> None:
    scene, trainers = training()
    trainers[7].is_unreadable = True
    stacks = stacks_of(scene)

    assert stacks.ranks_in_words([one for one in steps(stacks) if (one.ranks.rank or 0) >= 4]) == "ranks 4-6"


def test_a_rank_whose_run_is_not_known_belongs_to_the_only_one_of_its_class() -> None:
    scene, trainers = training()
    trainers[3].known["process_groups"] = ()
    stacks = stacks_of(scene)

    assert stacks.ranks_in_words(steps(stacks)) == "ranks 0-7"


def test_ranks_of_two_runs_are_not_mixed() -> None:
    scene, _ = training()
    for rank in range(SIZE):
        other = ranked(scene.actor("Trainer"), rank, process_groups=groups_of(rank, "tcp://10.0.0.2:29500"))
        other.runs(scene.call(other, "step", by=scene.procs[0]))
    stacks = stacks_of(scene)

    assert stacks.ranks_in_words(steps(stacks)) == ""
    assert stacks.ranks_in_words([one for one in steps(stacks) if one.ranks.world == WORLD]) == "ranks 0-7"


def test_workers_with_the_same_rank_are_not_named_by_it() -> None:
    scene, trainers = training()
    for trainer in trainers:
        trainer.known = {"rank": 0}

    assert stacks_of(scene).ranks_in_words(steps(stacks_of(scene))) == ""


def labelled(*stages: str) -> tuple[Scene, list[SceneProcess]]:
    scene = Scene()
    driver = scene.driver()
    actors = [scene.actor("Worker") for _ in stages]
    for actor, stage in zip(actors, stages, strict=True):
        actor.runs(scene.call(actor, "work", by=driver))
        actor.known["labels"] = {"stage": stage}
    return scene, actors


def test_labels_alone_name_a_part_unless_another_worker_may_have_them() -> None:
    scene, actors = labelled("rollout", "rollout", "train", "train", "train")
    stacks = stacks_of(scene)
    rollout = [one for one in stacks.running().executions if ("stage", "rollout") in one.ranks.labels]
    assert stacks.ranks_in_words(rollout) == "all of stage=rollout"

    actors[2].is_unreadable = True
    scene.samples = []
    assert stacks_of(scene).ranks_in_words(rollout) == ""


# Outliers


def test_an_outlier_is_named_by_its_rank_and_the_others_by_theirs() -> None:
    (odd,) = stacks_of(training()[0]).outliers().values()

    assert odd.words == "rank 3 is in other code than ranks 0-2, 4-7"


def test_a_whole_slice_elsewhere_is_an_outlier() -> None:
    found = stacks_of(training(lambda rank: rank in (4, 5))[0]).outliers().values()

    assert {one.words for one in found} == {"ranks 4-5 (all of pp 1, dp 0) are in other code than ranks 0-3, 6-7"}
    assert sorted(one.execution.ranks.rank or 0 for one in found) == [4, 5]


@pytest.mark.parametrize(
    "is_elsewhere", [lambda rank: rank in (3, 4), lambda rank: rank >= 4], ids=["no rank set", "no most"]
)
def test_two_ranks_without_a_common_slice_or_one_half_are_no_outliers(is_elsewhere: Callable[[int], bool]) -> None:
    assert stacks_of(training(is_elsewhere)[0]).outliers() == {}


def test_an_outlier_without_ranks_is_counted() -> None:
    scene, trainers = training()
    for trainer in trainers:
        trainer.known = {}

    (odd,) = stacks_of(scene).outliers().values()

    assert odd.words == "is in other code than its 7 peers"


def test_a_child_process_is_named_by_its_own_rank_in_report_and_json() -> None:
    scene, trainers = training()
    child = Process(pid=77, started_at=1.0, name="engine", process_groups=groups_of(6), rank=6)
    trainers[3].known["children"] = (child,)
    snapshot = scene.sample().second_sample().snapshot()
    analysed = AnalysedSnapshot.of(snapshot)

    _, _, printed = report_text(analysed, details=True).partition("Child processes")
    (listed,) = msgspec.json.decode(check_json(analysed))["child_processes"]

    assert "rank 3 (tp 1, pp 0, dp 1), pid 9000" in printed
    assert "engine  rank 6 (tp 0, pp 1, dp 1), pid 77" in printed
    assert (listed["rank"], listed["dimensions"]) == (6, {"tp": 0, "pp": 1, "dp": 1})
