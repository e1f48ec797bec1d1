"""Two tasks each hold half of the CPU of a node for a while, and another one asks for a whole CPU.

One CPU is free, but half of it on each node.

Needs: two nodes
Expected: running (finding: starved)
Members: whole
"""

import os
import time
from typing import Any

import ray
from ray.cluster_utils import Cluster


def join_or_make() -> None:
    """Joins a cluster, or makes one of two small nodes."""
    if "RAY_ADDRESS" in os.environ:
        ray.init(os.environ["RAY_ADDRESS"])
        return
    small = {"num_cpus": 1, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, connect=True, head_node_args=small)
    cluster.add_node(**small)


def half() -> None:
    time.sleep(600)


def whole() -> int:
    return 1


def main() -> None:
    join_or_make()
    halves = [ray.remote(half).options(num_cpus=0.5, scheduling_strategy="SPREAD").remote() for _ in range(2)]
    time.sleep(5)
    print("ready", flush=True)
    print(ray.get([ray.remote(whole).remote(), *halves]))


if __name__ == "__main__":
    main()
