"""On a Ray that dstack has never seen, each verdict is right, or what dstack has lost is said: never an exception.

dstack, or dstack and the cluster, use a copy of Ray in which something is another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters.dstack_command import dstack
from tests.clusters.ray_clusters import Example, run_example
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import ROOT
from tests.versions.doctored import Doctored

pytestmark = pytest.mark.ray

CONTEXT = "_ZN3ray4core13WorkerContext15thread_context_E"
WORKER, SCRIPT = "_private/worker.py", "_private/workers/default_worker.py"
OF_PROTOBUFS = {
    "a detail": (
        Doctored(protobufs={"GcsNodeInfo.death_info": "end_info", "ActorTableData.name": "title"}),
        (1, "no field death_info of GcsNodeInfo"),
    ),
    "the state of actors": (Doctored(protobufs={"ActorTableData.state": "phase"}), (None, "no field state")),
    "a method": (
        Doctored(protobufs={"ActorInfoGcsService.GetAllActorInfo": None}),
        (None, "no method GetAllActorInfo"),
    ),
    "the nodes": (Doctored(protobufs={"NodeInfoGcsService.GetAllNodeInfo": None}), (3, "no method GetAllNodeInfo")),
    "task events": (Doctored(protobufs={"TaskInfoGcsService.GetTaskEvents": None}), (1, "no method GetTaskEvents")),
    "core workers": (Doctored(protobufs={"CoreWorkerStats.object_refs": "refs"}), (4, "no field object_refs")),
    "a new value": (Doctored(new_values={"TaskStatus": "PENDING_LICENCE"}), (1, "TaskStatus PENDING_LICENCE")),
}
"""dstack's protobufs, the exit code of a check of a deadlock, None for 1 or 4, and what it says."""
OF_CLUSTER = {
    "2.61.0": (Doctored(version="2.61.0"), 1, "not with 2.61.0"),
    "2.62.0": (
        Doctored(
            version="2.62.0",
            edits={
                WORKER: {"def get_objects(": "def fetch_objects(", " worker.get_objects(": " worker.fetch_objects("}
            },
        ),
        4,
        "no function get_objects in ray/_private/worker.py",
    ),
    "2.63.0": (
        Doctored(
            version="2.63.0",
            edits={WORKER: {"def main_loop(self)": "def serve(self)"}, SCRIPT: {".main_loop()": ".serve()"}},
        ),
        4,
        "no function main_loop in ray/_private/worker.py",
    ),
    "2.64.0": (
        Doctored(version="2.64.0", names={(WORKER, "get_objects"): {"object_refs": "refs"}}),
        4,
        "no object_refs in get_objects of ray/_private/worker.py",
    ),
    "2.65.0": (
        Doctored(version="2.65.0", symbols={CONTEXT: CONTEXT.replace("context_E", "localxx_E")}),
        1,
        "thread_context_ was not found in _raylet.so",
    ),
}
"""The Ray of dstack and the cluster, the exit code of a check of a deadlock, and what it says."""


def checked(example: Example, path: Path) -> tuple[int, str, dict[str, Any]]:
    """Exit code, text and document of a check by a dstack that uses the Ray at a path."""
    environment = {**example.environment, "PYTHONPATH": f"{path}:{ROOT}"}
    options = ("--address", example.address, "--nodes-settle-after", "0")
    text = dstack("check", *options, environment=environment)
    done = dstack("check", "--json", *options, environment=environment)
    assert "Internal error" not in text.stdout + text.stderr
    return text.returncode, " ".join((text.stdout + text.stderr).split()), json.loads(done.stdout or "{}")


@pytest.fixture(scope="module")
def example(shared: SharedCluster) -> Iterator[Example]:
    with shared.running("two_actors") as running:
        yield running


@pytest.mark.parametrize("name", OF_PROTOBUFS)
def test_lost_pieces_of_protobufs_are_said(name: str, example: Example, tmp_path: Path) -> None:
    doctored, (expected, says) = OF_PROTOBUFS[name]
    code, text, document = checked(example, doctored.copy(tmp_path, runs=False))

    assert code in ({1, 4} if expected is None else {expected}), text
    assert says in text
    if code == 1:
        assert document["verdict"] == "deadlock"


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", OF_CLUSTER)
def test_lost_pieces_of_the_cluster_are_said(version: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    doctored, expected, says = OF_CLUSTER[version]
    path = doctored.copy(tmp_path_factory.mktemp("ray"))
    with run_example("two_actors", variables={"PYTHONPATH": f"{path}:{ROOT}"}) as running:
        code, text, document = checked(running, path)

    assert says in text
    assert f"not with {version}" in text
    assert code == expected, text
    if code == 1:
        assert document["verdict"] == "deadlock"
