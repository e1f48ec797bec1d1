"""A task whose argument was lost with a node, and cannot be made again: only that node had what its task asks for.

`load` ran on the node with the tape drive, and its value was in memory there. Ray runs it again, but no node has a tape
drive any more. So `train`, which takes the value, waits for its argument, though CPUs are free.

Needs: nodes that come and go
Expected: stalled
Members: driver argument_lost_with_node.py, train, load
Points at: print(ray.get(total))
Next step: Start a node that has it, or ask for less
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import ray
from ray.cluster_utils import Cluster

MIB = 1024 * 1024


@ray.remote(num_cpus=0, resources={"tape": 1})
def load() -> Any:
    return np.ones(10 * MIB, dtype=np.uint8)


@ray.remote
def train(table: Any) -> int:
    return int(table.sum())


def join_or_make() -> str:
    """Joins a cluster, or makes one of a small node; returns its address."""
    if "RAY_ADDRESS" in os.environ:
        ray.init(os.environ["RAY_ADDRESS"])
        return os.environ["RAY_ADDRESS"]
    small = {"num_cpus": 1, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, connect=True, head_node_args=small)
    return str(cluster.address)


def start_node(address: str) -> subprocess.Popen[bytes]:
    """Starts a node with a tape drive on this host."""
    options = ["--num-cpus=0", '--resources={"tape": 1}', "--dashboard-agent-listen-port=0", "--block"]
    return subprocess.Popen([sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", *options])


def crash(node: subprocess.Popen[bytes]) -> None:
    """Kills the raylet of a node: Ray notices that the node is dead about 15 s later."""
    below = psutil.Process(node.pid).children(recursive=True)
    next(process for process in below if process.name() == "raylet").kill()


def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.1)


def main() -> None:
    node = start_node(join_or_make())
    wait_until(lambda: "tape" in ray.cluster_resources())
    table = load.remote()
    ray.wait([table], fetch_local=False)
    crash(node)
    total = train.remote(table)
    wait_until(lambda: "tape" not in ray.cluster_resources())
    print("ready", flush=True)
    print(ray.get(total))


if __name__ == "__main__":
    main()
