"""An actor creates another one on its own node, of which it holds the only CPU itself.

The other node has a free CPU, but the affinity is hard. Ray reports no affinities; it says which node has the request.

Needs: two nodes
Expected: deadlock
Members: Parent.go, Child.ping
Points at: return str(ray.get(child.ping.remote()))
Next step: Set num_cpus=0 for actor Parent
"""

import os
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


class Child:
    def ping(self) -> str:
        return "pong"


class Parent:
    def go(self) -> str:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        child: Any = ray.remote(Child).options(num_cpus=1, scheduling_strategy=here).remote()
        return str(ray.get(child.ping.remote()))


def main() -> None:
    join_or_make()
    parent: Any = ray.remote(Parent).options(num_cpus=1).remote()
    print("ready", flush=True)
    print(ray.get(parent.go.remote()))


if __name__ == "__main__":
    main()
