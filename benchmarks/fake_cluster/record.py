"""Records what the nodes of a small real cluster answer, into `recorded.json.gz`.

python -m benchmarks.fake_cluster.record
"""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
from ray.cluster_utils import Cluster as RayCluster

from dstack.probes.connection import ray_stubs
from dstack.probes.connection.connect import Cluster, connect
from dstack.probes.node import wire
from dstack.probes.node.core_worker_calls import CHANNEL_OPTIONS
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node_access.targets import targets
from dstack.probes.ray_state.control_plane import Inventory, take_inventory
from dstack.probes.ray_state.workers import core_workers, questions

FILE = Path(__file__).with_name("recorded.json.gz")
NODES = "HRSPQ"
SETTLED_S = 5.0
TABLES = {
    "NodeInfoGcsService": ("CheckAlive", "GetAllNodeInfo"),
    "WorkerInfoGcsService": ("GetAllWorkerInfo",),
    "ActorInfoGcsService": ("GetAllActorInfo",),
    "JobInfoGcsService": ("GetAllJobInfo",),
    "PlacementGroupInfoGcsService": ("GetAllPlacementGroup",),
    "NodeResourceInfoGcsService": ("GetAllTotalResources", "GetAllAvailableResources"),
    "InternalKVGcsService": ("InternalKVGet",),
    "TaskInfoGcsService": ("GetTaskEvents",),
}


def main() -> None:
    cluster = RayCluster()
    try:
        for name in NODES:
            cluster.add_node(num_cpus=0, resources={name: 100}, include_dashboard=False)
        driver = [sys.executable, "-m", "benchmarks.fake_cluster.application", cluster.address]
        with subprocess.Popen(driver, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            time.sleep(SETTLED_S)
            recorded = recorded_of(connect(cluster.address))
            running.kill()
    finally:
        cluster.shutdown()
    FILE.write_bytes(gzip.compress(json.dumps(recorded, sort_keys=True).encode(), mtime=0))
    print(f"{FILE}: {FILE.stat().st_size / 1024:.0f} KiB")


def recorded_of(cluster: Cluster) -> dict[str, Any]:
    """The tables of the GCS as it sends them, and the answers of nodes and core workers."""
    inventory = take_inventory(cluster, 10.0)
    letter_of = {node.node_id: next(iter(set(NODES) & node.resources.keys())) for node in inventory.nodes}
    answers = {letter: answers_of(node_id, inventory) for node_id, letter in letter_of.items()}
    return {
        "version": cluster.ray_version,
        "letters": letters(inventory, letter_of),
        "ip": inventory.nodes[0].ip,
        "tables": {
            f"/ray.rpc.{service}/{method}": encoded(asked(cluster.address, service, method))
            for service, methods in TABLES.items()
            for method in methods
        },
        "core_workers": {worker.worker_id: encoded(stats_of(worker)) for worker in inventory.workers},
        "answers": {letter: [answer for answer, _ in its[-2:]] for letter, its in answers.items()},
        "took_s": {letter: [round(took_s, 3) for _, took_s in its] for letter, its in answers.items()},
    }


def letters(inventory: Inventory, letter_of: dict[str, str]) -> dict[str, str]:
    """The letter of the node for each id of a node, worker or actor."""
    found = dict(letter_of)
    found |= {worker.worker_id: letter_of[worker.node_id] for worker in inventory.workers}
    found |= {actor.actor_id: letter_of[actor.node_id] for actor in inventory.actors if actor.node_id}
    return found


def answers_of(node_id: str, inventory: Inventory) -> list[tuple[Any, float]]:
    """What a node's new probe answers to its first request, then to those of both samples, and how long each took.

    One node is asked at a time: in a real cluster, each has CPUs of its own.
    """
    reader = NodeProbe(lambda: ray_stubs)
    workers = [worker for worker in inventory.workers if worker.node_id == node_id]
    request: wire.NodeRequest = {
        "nodes": [],
        "is_first": True,
        "workers": core_workers(workers),
        "questions": questions((), 10.0),
        "targets": targets(workers),
        "options": {
            "native": False,
            "locals": False,
            "pause": False,
            "children": True,
            "reach": False,
            "deadline_s": 20.0,
        },
    }
    found = []
    for is_first in (True, True, False):
        request["options"]["reach"], request["is_first"] = not is_first, is_first
        began = time.perf_counter()
        found.append((json.loads(wire.encoded(reader.answer(request))), time.perf_counter() - began))
    return found


def asked(address: str, service: str, method: str) -> bytes:
    """The reply to an empty request."""
    with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call: Any = channel.unary_unary(f"/ray.rpc.{service}/{method}")
        return bytes(call(b"", timeout=10.0))


def stats_of(worker: Any) -> bytes:
    """A core worker's reply."""
    request = ray_stubs.core_worker_pb2.GetCoreWorkerStatsRequest(
        intended_worker_id=bytes.fromhex(worker.worker_id),
        include_memory_info=True,
        include_task_info=True,
        limit=10**6,
    )
    with grpc.insecure_channel(f"{worker.ip}:{worker.port}", options=CHANNEL_OPTIONS) as channel:
        call: Any = channel.unary_unary("/ray.rpc.CoreWorkerService/GetCoreWorkerStats")
        return bytes(call(request.SerializeToString(), timeout=10.0))


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    main()
