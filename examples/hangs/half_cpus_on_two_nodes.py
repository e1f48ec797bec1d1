"""Two actors each hold half of the CPU of a node, and a task asks for a whole one.

One CPU is free, but half of it on each node. The driver waits for the task, so it never ends the actors.

Needs: two nodes
Expected: deadlock
Members: driver half_cpus_on_two_nodes.py, whole
Points at: print(ray.get(ray.remote(whole).remote()))
Next step: Set num_cpus=0 for actor Half, or start fewer of them
"""

import os
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


class Half:
    def ping(self) -> str:
        return "pong"


def whole() -> int:
    return 1


def main() -> None:
    join_or_make()
    halves: Any = [ray.remote(Half).options(num_cpus=0.5, scheduling_strategy="SPREAD").remote() for _ in range(2)]
    ray.get([half.ping.remote() for half in halves])
    print("ready", flush=True)
    print(ray.get(ray.remote(whole).remote()))


if __name__ == "__main__":
    main()
