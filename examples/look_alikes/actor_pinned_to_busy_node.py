"""An actor that must be on the node of a task, which holds its only CPU for a while; another node has a free CPU.

Needs: two nodes
Expected: running (finding: starved)
Members: Child.__init__
"""

import os
import time
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def join_or_make() -> None:
    """Joins a cluster, or makes one of two small nodes."""
    if "RAY_ADDRESS" in os.environ:
        ray.init(os.environ["RAY_ADDRESS"])
        return
    small = {"num_cpus": 1, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, connect=True, head_node_args=small)
    cluster.add_node(**small)


def hold() -> None:
    time.sleep(600)


class Child:
    def ping(self) -> str:
        return "pong"


def main() -> None:
    join_or_make()
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    holding = ray.remote(hold).options(scheduling_strategy=here).remote()
    time.sleep(5)
    child: Any = ray.remote(Child).options(num_cpus=1, scheduling_strategy=here).remote()
    print("ready", flush=True)
    print(ray.get([child.ping.remote(), holding]))


if __name__ == "__main__":
    main()
