"""The JSON of all stacks meets its JSON Schema, and has each execution once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
from hypothesis import given

from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks
from dstack.analysis.views.all_stacks import By, ChosenStacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.model.profile import PathStep
from dstack.report.stacks_files import folded, speedscope, stacks_json, stacks_schema
from dstack.version import __version__
from dstack.words import UNSEEN
from tests.clusters.dstack_command import Json
from tests.examples.recorded import RECORDED
from tests.fuzzing.effort import examples
from tests.paths import RECORDED_CLUSTERS
from tests.unit.report.stacks import STACKS, TWO_RANKS
from tests.unit.report.test_check_schema import closed

SCHEMA = jsonschema.Draft202012Validator(closed(stacks_schema()))
MESH = RECORDED_CLUSTERS / "torch-mesh-ray-2.60.json.gz"
FILES = [*sorted(RECORDED_CLUSTERS.iterdir()), *sorted((RECORDED / "hangs" / "libraries").iterdir())]


def document_of(analysed: AnalysedSnapshot, by: By = "class", *, whole: bool = False) -> Json:
    document: Json = json.loads(stacks_json(ChosenStacks(analysed.stacks, whole=whole), by))
    SCHEMA.validate(document)
    return document


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".json")[0])
def test_documents_of_recorded_snapshots_are_valid_and_have_each_execution_once(file: Path) -> None:
    analysed = AnalysedSnapshot.of(load(file))

    for by in get_args(By):
        document = document_of(analysed, by)
        stacks = [stack for group in document["groups"] for stack in group["stacks"]]
        assert document["by"] == by
        assert sum(group["count"] for group in document["groups"]) == document["count"]
        assert sum(stack["count"] for stack in stacks) == document["count"]
        assert all(len(stack["executions"]) == stack["count"] for stack in stacks)
        assert sum(document["activities"].values()) == document["count"]


def test_an_outlier_and_its_call_are_named() -> None:
    document = document_of(AnalysedSnapshot.of(load(MESH)))
    trainers = next(group for group in document["groups"] if group["name"] == "actor Trainer")

    most, odd = trainers["stacks"]
    assert [most["count"], odd["count"]] == [3, 1]
    assert {one["waits_in"] for one in most["executions"]} == {"all_reduce of torch.distributed"}
    assert odd["executions"][0]["outlier"] == "rank 3 is in other code than ranks 0-2 (all of stage=train)"
    assert (odd["executions"][0]["rank"], odd["executions"][0]["labels"]["stage"]) == (3, "late")
    assert odd["frames"][-1]["function"] == "Trainer.step"


def test_whole_stacks_have_more_frames() -> None:
    analysed = AnalysedSnapshot.of(load(MESH))
    own, whole = document_of(analysed), document_of(analysed, whole=True)

    def frames(document: Json) -> int:
        return sum(len(stack["frames"]) for group in document["groups"] for stack in group["stacks"])

    assert frames(whole) > frames(own)
    assert (own["whole"], whole["whole"]) == (False, True)


A_LINE = re.compile(r"(?P<names>.*\S) (?P<weight>[0-9]+)")
SECOND_NUMBER = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")
"""How flamegraph.pl recognises the first of two numbers of a comparison."""


def one(*stacks: WeightedStack) -> str:
    return folded(WeightedStacks("", "samples", stacks)).decode()


def test_each_stack_is_a_line_with_its_groups_and_frames() -> None:
    assert folded(TWO_RANKS).decode() == (
        "actor Trainer;rank 0;train (app/train.py:12);ray.get (ray/worker.py:40) 3\n"
        "actor Trainer;rank 1;train (app/train.py:12) 5\n"
    )


def test_equal_lines_are_added_and_stacks_without_weight_left_out() -> None:
    step = PathStep("f", "a.py", 1, "f", "user")
    other = PathStep("f", "a.py", 1, "g", "ray")

    assert one(*(WeightedStack((), (place,), 2) for place in (step, other))) == "f (a.py:1) 4\n"
    assert one(WeightedStack((), (step,), 0)) == ""


def test_a_name_that_ends_in_a_number_is_not_read_as_a_weight() -> None:
    assert one(WeightedStack(("rank 3",), (), 4)) == "rank 3;(self) 4\n"
    assert one(WeightedStack((), (PathStep("step 2"),), 4)) == "step 2;(self) 4\n"
    assert one(WeightedStack((), (), 4)) == "(self) 4\n"


def test_separators_and_line_ends_in_names_are_escaped() -> None:
    assert one(WeightedStack(("a;b",), (PathStep("f\n1", "x.py", 2, "f"),), 1)) == "a\\x3bb;f\\n1 (x.py:2) 1\n"


@examples(200)
@given(STACKS)
def test_weights_are_conserved_and_hostile_names_break_no_line(stacks: WeightedStacks) -> None:
    text = folded(stacks).decode()

    lines = text.splitlines()
    assert "".join(f"{line}\n" for line in lines) == text
    assert not UNSEEN.search("".join(lines))
    found = [match for line in lines if (match := A_LINE.fullmatch(line))]
    assert len(found) == len(lines)
    assert not any(SECOND_NUMBER.match(match["names"]) for match in found)
    assert sum(int(match["weight"]) for match in found) == stacks.weight
    depths = {len(match["names"].split(";")) for match in found}
    assert depths <= {len(one.groups) + len(one.frames) + more for one in stacks.stacks for more in (0, 1)}


SPEEDSCOPE_SCHEMA = jsonschema.Draft7Validator(
    json.loads((Path(__file__).parent / "formats" / "speedscope.schema.json").read_text())
)


def speedscope_of(stacks: WeightedStacks) -> Json:
    document: Json = json.loads(speedscope(stacks))
    SPEEDSCOPE_SCHEMA.validate(document)
    return document


def stacks_in(document: Json, profile: Json) -> list[list[str]]:
    names = [frame["name"] for frame in document["shared"]["frames"]]
    return [[names[position] for position in sample] for sample in profile["samples"]]


def test_each_group_path_is_a_profile_after_one_of_all() -> None:
    document = speedscope_of(TWO_RANKS)

    assert [profile["name"] for profile in document["profiles"]] == [
        "cluster",
        "actor Trainer / rank 0",
        "actor Trainer / rank 1",
    ]
    assert stacks_in(document, document["profiles"][0]) == [
        ["actor Trainer", "rank 0", "train", "ray.get"],
        ["actor Trainer", "rank 1", "train"],
    ]
    assert stacks_in(document, document["profiles"][1]) == [["train", "ray.get"]]
    assert document["shared"]["frames"][2] == {"name": "train", "file": "app/train.py", "line": 12}
    assert document["exporter"] == f"dstack {__version__}"


def test_one_group_is_one_profile() -> None:
    document = speedscope_of(WeightedStacks("cluster", "microseconds", TWO_RANKS.stacks[:1]))

    assert [profile["name"] for profile in document["profiles"]] == ["actor Trainer / rank 0"]
    assert document["profiles"][0]["unit"] == "microseconds"


def test_without_stacks_there_is_an_empty_profile() -> None:
    assert [profile["samples"] for profile in speedscope_of(WeightedStacks("none", "samples", ()))["profiles"]] == [[]]


@examples(200)
@given(STACKS)
def test_weights_are_conserved_and_hostile_names_are_harmless(stacks: WeightedStacks) -> None:
    document = speedscope_of(stacks)

    everything, *groups = document["profiles"]
    for profile in document["profiles"]:
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] == sum(profile["weights"])
    assert everything["endValue"] == stacks.weight
    assert sum(profile["endValue"] for profile in groups or [everything]) == stacks.weight
    frames = document["shared"]["frames"]
    assert all(
        0 <= position < len(frames) for one in document["profiles"] for each in one["samples"] for position in each
    )
    names = [profile["name"] for profile in document["profiles"]] + [frame["name"] for frame in frames]
    assert not any(UNSEEN.search(name) for name in names)
