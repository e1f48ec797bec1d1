"""Bundles for more nodes than there are, until a node that starts later than the others joins.

As where each node of a job on Slurm runs `ray start` by itself, and the driver begins beside the head.

Needs: nodes that come and go
Expected: running (finding: starved)
Members: driver node_joins_late.py, placement group archive
Points at: ray.get(group.ready())
Next step: Start a node that has it, or ask for less
"""

import os
import subprocess
import sys
import threading
import time
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group

LATE_S = float(os.environ.get("LATE_S", "250"))
NODES = 3


def join_or_make() -> str:
    """Joins a cluster, or makes one of a small node; returns its address."""
    if "RAY_ADDRESS" in os.environ:
        ray.init(os.environ["RAY_ADDRESS"])
        return os.environ["RAY_ADDRESS"]
    small = {"num_cpus": 1, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, connect=True, head_node_args=small)
    return str(cluster.address)


def start_node(address: str) -> subprocess.Popen[bytes]:
    """Starts a node on this host."""
    options = ["--num-cpus=1", "--dashboard-agent-listen-port=0", "--block"]
    return subprocess.Popen([sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", *options])


def alive() -> int:
    return sum(node["Alive"] for node in ray.nodes())


def start_last(address: str, nodes: list[subprocess.Popen[bytes]]) -> None:
    """Starts the last node after a while."""
    time.sleep(LATE_S)
    nodes.append(start_node(address))


def main() -> None:
    address = join_or_make()
    nodes = [start_node(address) for _ in range(NODES - 2)]
    while alive() < NODES - 1:
        time.sleep(0.1)
    last = threading.Thread(target=start_last, args=[address, nodes])
    last.start()
    group = placement_group([{"CPU": 0.1}] * NODES, strategy="STRICT_SPREAD", name="archive")
    print("ready", flush=True)
    ray.get(group.ready())
    last.join()
    for node in nodes:
        node.kill()


if __name__ == "__main__":
    main()
