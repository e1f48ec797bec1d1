"""A task that asks for a resource of a node that was lost, and that returns after a while.

No present node has the resource. No autoscaler adds one: the host of the lost node restarts, and joins again.

Needs: nodes that come and go
Expected: running (finding: starved)
Members: driver lost_node_returns.py, archive
Points at: print(ray.get(archive.remote()))
Next step: Start a node that has it, or ask for less
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.cluster_utils import Cluster

AWAY_S = float(os.environ.get("AWAY_S", "250"))


@ray.remote(num_cpus=0, resources={"tape": 1})
def archive() -> str:
    return "archived"


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
    options = ["--num-cpus=0", '--resources={"tape": 2}', "--dashboard-agent-listen-port=0", "--block"]
    return subprocess.Popen([sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", *options])


def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.1)


def restart(address: str, nodes: list[subprocess.Popen[bytes]]) -> None:
    """Starts the node again after a while."""
    time.sleep(AWAY_S)
    nodes.append(start_node(address))


def main() -> None:
    address = join_or_make()
    nodes = [start_node(address)]
    wait_until(lambda: "tape" in ray.cluster_resources())
    nodes[0].terminate()
    nodes[0].wait()
    wait_until(lambda: "tape" not in ray.cluster_resources())
    host = threading.Thread(target=restart, args=[address, nodes])
    host.start()
    print("ready", flush=True)
    print(ray.get(archive.remote()))
    host.join()
    nodes[1].kill()


if __name__ == "__main__":
    main()
