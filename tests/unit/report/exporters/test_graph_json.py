"""Call graphs as JSON meet their schema, which has every field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dstack.analysis.history.call_nodes import By
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.call_graph import CallGraph
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.report.exporters.graph_json import graph_json, graph_schema
from tests.fuzzing.hostile_text import hostile
from tests.paths import RECORDED_CALLS, RECORDED_CLUSTERS
from tests.unit.report.test_check_schema import closed
from tests.unit.scenes import Scene

FILES = [RECORDED_CALLS, *sorted(RECORDED_CLUSTERS.iterdir())]
SCHEMA = jsonschema.Draft202012Validator(closed(graph_schema()))


def document_of(snapshot: Snapshot, by: By = "class") -> dict[str, Any]:
    graph = CallGraph.of(AnalysedSnapshot.of(snapshot), by=by)
    document: dict[str, Any] = json.loads(graph_json(graph, snapshot.taken_at))
    return document


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name.partition(".json")[0])
@pytest.mark.parametrize("by", ["class", "instance"])
def test_graphs_of_recorded_snapshots_are_valid(file: Path, by: By) -> None:
    document = document_of(load(file), by)

    SCHEMA.validate(document)
    ids = {node["id"] for node in document["nodes"]}
    assert len(ids) == len(document["nodes"])
    assert all({edge["source"], edge["target"]} <= ids for edge in [*document["edges"], *document["waits"]])


def test_hostile_text_is_valid() -> None:
    SCHEMA.validate(document_of(hostile(load(RECORDED_CALLS))))


def test_a_document_with_other_fields_is_not_valid() -> None:
    document = document_of(load(RECORDED_CALLS))

    assert not SCHEMA.is_valid({**document, "mood": "good"})
    assert not SCHEMA.is_valid({key: value for key, value in document.items() if key != "edges"})


def test_a_graph_without_history_says_so() -> None:
    document = document_of(Scene().snapshot())

    assert document["history"] is None
    assert document["edges"] == []
