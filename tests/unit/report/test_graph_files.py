"""Call graphs as JSON meet their schema, which has every field."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dstack.analysis.history.call_nodes import By
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.call_graph import CallGraph
from dstack.files.snapshot_file import load
from dstack.model.profile import Endpoint, Traffic
from dstack.model.snapshot import Snapshot
from dstack.report.calls_text import call_table
from dstack.report.graph_files import dot, graph_json, graph_schema
from dstack.words import UNSEEN
from tests.fuzzing.hostile_text import HOSTILE, hostile
from tests.paths import RECORDED_CALLS, RECORDED_CLUSTERS
from tests.unit.report.test_check_schema import closed
from tests.unit.scenes import Scene
from tests.unit.support.call_histories import attempt, ended, graph_of, with_history

FILES = [RECORDED_CALLS, *sorted(RECORDED_CLUSTERS.iterdir())]
SCHEMA = jsonschema.Draft202012Validator(closed(graph_schema()))


def document_of(snapshot: Snapshot, by: By = "class", traffic: Iterable[Traffic] = ()) -> dict[str, Any]:
    graph = CallGraph.of(AnalysedSnapshot.of(snapshot), by=by, traffic=traffic)
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


def test_data_of_a_profile_is_between_the_classes_of_the_graph() -> None:
    snapshot = load(RECORDED_CALLS)
    (job,) = {one.job_id for one in snapshot.jobs}
    store, driver = (
        (Endpoint("actor", "Store", method, job) for method in ("put", "size")),
        Endpoint("driver", "a.py", job_id=job),
    )
    traffic = [*(Traffic(one, driver, 2, 1 << 20) for one in store), Traffic(driver, Endpoint("actor", "Other"), 1, 9)]
    document = document_of(snapshot, traffic=traffic)
    graph = CallGraph.of(AnalysedSnapshot.of(snapshot), traffic=traffic)

    SCHEMA.validate(document)
    assert document["traffic"] == [
        {"source": f"actor:{job}:Store", "target": f"driver:{job}", "objects": 4, "bytes": 2 << 20}
    ]
    assert "Data: at least 2.0 MiB in 4 objects from Store to driver pipeline.py" in call_table(graph)
    assert b'label="at least 2.0 MiB in 4 objects"' in dot(graph)


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


needs_graphviz = pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
NASTY = ['"', "\\", "\\N", 'a"];b [label="c', "<b>x</b>", "<<i>", "n1:p", "{a|b}", "tail\\", "", "é→", HOSTILE]


@pytest.fixture(scope="module")
def recorded() -> CallGraph:
    return CallGraph.of(AnalysedSnapshot.of(load(RECORDED_CALLS)))


def parsed(data: bytes) -> dict[str, Any]:
    """The graph as Graphviz reads it."""
    done = subprocess.run(["dot", "-Tjson0"], input=data, capture_output=True, check=True)
    assert not done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_waits_are_dashed_and_deadlocks_bold(recorded: CallGraph) -> None:
    lines = dot(recorded).decode().splitlines()
    waits = [line for line in lines if "waits:" in line]

    assert len(waits) == len(recorded.waits) == 4
    assert all("dashed" in line for line in waits)
    bold = [line for line in waits if "dashed,bold" in line]
    assert len(bold) == 3
    assert all("deadlock" in line for line in bold)


def test_labels_have_the_figures(recorded: CallGraph) -> None:
    text = dot(recorded).decode()

    assert "61 calls, 44/s\\nsize, __init__\\n" in text
    assert '"6 calls\\n1 failed\\nmean ' in text
    assert "14 MiB alive" in text
    assert 'label="Rollout (3 actors)"' in text


@needs_graphviz
def test_graphviz_reads_what_was_written(recorded: CallGraph) -> None:
    found = parsed(dot(recorded))

    assert {one["label"].split("\\n")[0] for one in found["objects"]} == {
        "driver pipeline.py",
        "Rollout (3 actors)",
        "Trainer",
        "Store",
        "prepare",
        "tokenize",
    }
    assert len(found["edges"]) == len(recorded.edges) + len(recorded.waits)


@needs_graphviz
@pytest.mark.parametrize("name", NASTY)
def test_no_name_changes_the_graph(name: str) -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor(name)
    calls = [ended(scene, scene.task(name, by=driver)), ended(scene, scene.call(actor, name, by=driver))]
    found = parsed(dot(graph_of(with_history(scene, [attempt(call, driver) for call in calls]))))

    assert len(found["objects"]) == 3
    assert len(found["edges"]) == 2
    assert not any("<" in str(one.get("_ldraw_")) for one in found["objects"])


def test_hostile_text_is_visible() -> None:
    data = dot(CallGraph.of(AnalysedSnapshot.of(hostile(load(RECORDED_CALLS)))))

    assert not UNSEEN.search(data.decode().replace("\n", "").replace("\t", ""))


def test_an_empty_graph_is_valid() -> None:
    assert dot(graph_of(Scene())).startswith(b"digraph calls {")
