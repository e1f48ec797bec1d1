"""A placement group that needs the CPUs of actors, whose owner waits for the group.

A guard on each node holds a CPU for life. The driver holds the guards, and waits for a group that needs both CPUs.

Needs: two nodes
Expected: deadlock
Members: driver spread_behind_actors.py, placement group patrol
Points at: ray.get(group.ready())
Next step: Set num_cpus=0 for actor Guard, or start fewer of them
"""

import os
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group


def join_or_make() -> None:
    """Joins a cluster, or makes one of two small nodes."""
    if "RAY_ADDRESS" in os.environ:
        ray.init(os.environ["RAY_ADDRESS"])
        return
    small = {"num_cpus": 1, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, connect=True, head_node_args=small)
    cluster.add_node(**small)


class Guard:
    pass


def main() -> None:
    join_or_make()
    guards: list[Any] = [ray.remote(Guard).options(num_cpus=1, scheduling_strategy="SPREAD").remote() for _ in range(2)]
    ray.get([guard.__ray_ready__.remote() for guard in guards])
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="SPREAD", name="patrol")
    print("ready", flush=True)
    ray.get(group.ready())
    ray.get([guard.__ray_ready__.remote() for guard in guards])


if __name__ == "__main__":
    main()
