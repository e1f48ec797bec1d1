"""A task whose argument was lost with a node, and is made again, which takes a while: another node has a tape drive.

`load` ran on one of two nodes with a tape drive, and its value was in memory there. Ray runs it again on the other one.
`train`, which takes the value, waits for its argument, though CPUs are free.

Needs: nodes that come and go
Expected: running (finding: running)
Members: driver argument_made_again.py, train
Points at: time.sleep(AGAIN_S if is_again else 0)
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import ray
from ray.cluster_utils import Cluster

MIB = 1024 * 1024
AGAIN_S = float(os.environ.get("AGAIN_S", "250"))


@ray.remote(num_cpus=0, resources={"tape": 1})
def load(mark: str) -> Any:
    is_again = os.path.exists(mark)
    open(mark, "w").close()
    time.sleep(AGAIN_S if is_again else 0)
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
    address = join_or_make()
    node = start_node(address)
    wait_until(lambda: "tape" in ray.cluster_resources())
    with tempfile.TemporaryDirectory() as folder:
        table = load.remote(f"{folder}/made")
        ray.wait([table], fetch_local=False)
        crash(node)
        total = train.remote(table)
        wait_until(lambda: "tape" not in ray.cluster_resources())
        other = start_node(address)
        wait_until(lambda: "tape" in ray.cluster_resources())
        print("ready", flush=True)
        print(ray.get(total))
    other.kill()


if __name__ == "__main__":
    main()
