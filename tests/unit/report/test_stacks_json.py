"""The JSON of all stacks meets its JSON Schema, and has each execution once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import jsonschema
import pytest

from dstack.analysis.views.all_stacks import By, ChosenStacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.report.stacks_json import stacks_json, stacks_schema
from tests.clusters.dstack_command import Json
from tests.examples.recorded import RECORDED
from tests.paths import RECORDED_CLUSTERS
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
