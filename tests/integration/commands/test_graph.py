"""``dstack graph`` on a real cluster of two nodes: a pipeline with nested, failing and repeated calls, which hangs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.report.graph_files import graph_schema
from tests.clusters.dstack_command import Json, dstack
from tests.clusters.ray_clusters import ray_cluster
from tests.paths import PROGRAMS
from tests.processes import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]  # its snapshot is recorded, for quick tests

REPORTED_S = 60.0
"""Deadline for the events of the program to reach the GCS: workers report once a second."""
ROLLOUTS, SHARDS, POLLS, BYTES = 3, 6, 60, 3_000_000
STATES = {"finished": 116, "failed": 1, "running": 2, "pending": 2}
"""The calls of the program once it hangs and all events have been reported."""
DRIVER = "driver pipeline.py"


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Json]:
    """A snapshot of the program after it hung, and the graph that ``dstack graph`` printed of the cluster itself."""
    file = tmp_path_factory.mktemp("graph") / "pipeline.json.gz"
    last: list[Json] = []
    with ray_cluster(2) as cluster, cluster.run_example(PROGRAMS / "drivers/pipeline.py"):
        where = ("--address", cluster.address)

        def is_reported() -> Json | None:
            done = dstack("graph", *where, "--format", "json", environment=cluster.environment)
            assert done.returncode == 0, done.stderr
            last[:] = [json.loads(done.stdout)]
            states = {name: sum(edge[name] for edge in last[0]["edges"]) for name in STATES}
            if states != STATES or not last[0]["waits"]:
                return None
            is_longest = edges_of(last[0])[DRIVER, "Trainer"]["max_is_open"]  # soon: the call runs for ever
            return last[0] if is_longest else None

        live = wait_until(is_reported, deadline_s=REPORTED_S, what=lambda: f"reported: {last}")
        done = dstack("snapshot", *where, "-o", str(file), environment=cluster.environment)
        assert done.returncode == 0, done.stderr
    return file, live


@pytest.fixture(scope="module")
def document(taken: tuple[Path, Json]) -> Json:
    """The graph of the saved snapshot."""
    return graph_of(taken[0])


def graph_of(file: Path, *options: str) -> Json:
    done = dstack("graph", str(file), "--format", "json", *options)
    assert done.returncode == 0, done.stderr
    document: Json = json.loads(done.stdout)
    return document


def edges_of(document: Json) -> dict[tuple[str, str], dict[str, Any]]:
    titles = {node["id"]: node["title"] for node in document["nodes"]}
    return {(titles[edge["source"]], titles[edge["target"]]): edge for edge in document["edges"]}


def test_each_call_is_on_the_edge_of_its_caller(document: Json) -> None:
    counts = {names: edge["tasks"] for names, edge in edges_of(document).items()}

    assert counts == {
        (DRIVER, "Store"): POLLS + 1,
        (DRIVER, "Rollout"): ROLLOUTS * 5,
        (DRIVER, "Trainer"): 8,
        (DRIVER, "prepare"): SHARDS,
        ("prepare", "tokenize"): SHARDS * 2,
        ("Rollout", "Store"): ROLLOUTS * 4,  # an async actor, whose creation the GCS names as the caller
        ("Rollout", "Trainer"): 1,
        ("Trainer", "Store"): 5,
        ("Trainer", "Rollout"): 1,
    }


def test_polling_failures_and_live_objects_are_visible(document: Json) -> None:
    edges = edges_of(document)
    prepare = edges[DRIVER, "prepare"]
    size = next(one for one in edges[DRIVER, "Store"]["methods"] if one["name"] == "size")

    assert prepare["failed"] == 1
    assert (SHARDS - 1) * BYTES <= prepare["live_bytes"] < SHARDS * BYTES
    assert size["attempts"] == POLLS
    assert size["per_s"] > 1
    assert size["mean_s"] < 1
    put = {node["title"]: node["put_bytes"] for node in document["nodes"]}
    assert BYTES <= put[DRIVER] < BYTES + 1000
    assert sum(put.values()) == put[DRIVER]
    assert document["other_bytes"] == 0


def test_the_running_call_is_the_longest(document: Json) -> None:
    edge = edges_of(document)[DRIVER, "Trainer"]

    assert (edge["running"], edge["pending"], edge["failed"]) == (1, 1, 0)
    assert edge["max_is_open"]
    assert edge["max_s"] > edge["mean_s"]


def test_the_waits_of_the_deadlock_are_drawn_over_the_calls(document: Json) -> None:
    titles = {node["id"]: node["title"] for node in document["nodes"]}
    waits = {(titles[wait["source"]], titles[wait["target"]]): wait for wait in document["waits"]}

    assert waits["Trainer", "Rollout"]["deadlocked"] == waits["Rollout", "Trainer"]["deadlocked"] == 1
    assert waits["Trainer", "Rollout"]["kinds"] == {"ray.get": 1}
    assert waits[DRIVER, "Trainer"]["blocked"] == 1


def test_a_running_cluster_has_the_same_graph(taken: tuple[Path, Json], document: Json) -> None:
    jsonschema.Draft202012Validator(graph_schema()).validate(taken[1])
    counts = [{names: edge["tasks"] for names, edge in edges_of(one).items()} for one in (taken[1], document)]

    assert counts[0] == counts[1]


def test_each_actor_can_have_a_node_on_its_own_node_of_the_cluster(taken: tuple[Path, Json]) -> None:
    document = graph_of(taken[0], "--by", "instance")
    snapshot: Snapshot = load(taken[0])
    actors = {actor.actor_id: actor for actor in snapshot.actors}
    found = [node["actor_id"] for node in document["nodes"] if node["kind"] == "actor"]

    assert set(found) == set(actors)
    assert len({actor.node_id for actor in snapshot.actors}) == 2
    assert sum(edge["attempts"] for edge in document["edges"]) == sum(
        edge["attempts"] for edge in graph_of(taken[0])["edges"]
    )


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs Graphviz")
def test_graphviz_draws_the_graph(taken: tuple[Path, Json], tmp_path: Path) -> None:
    file = tmp_path / "calls.dot"
    assert dstack("graph", str(taken[0]), "-o", str(file)).returncode == 0
    drawn = subprocess.run(["dot", "-Tplain", str(file)], capture_output=True, text=True, check=True).stdout

    assert drawn.count("\nnode ") == 6
    assert drawn.count("\nedge ") == len(edges_of(graph_of(taken[0]))) + 4
