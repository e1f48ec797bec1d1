"""A placement group that needs what another group of the same driver has reserved.

Nothing runs in the first group. It exists until the driver removes it, and the driver waits for the second group.

Needs: two nodes
Expected: deadlock
Members: driver pack_behind_group.py, placement group night shift
Points at: ray.get(night.ready())
Next step: Reserve less CPU in placement group day shift
"""

import os
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group


def join_or_make() -> None:
    """Joins a cluster, or makes one of two small nodes."""
    if "RAY_ADDRESS" in os.environ:
        ray.init(os.environ["RAY_ADDRESS"])
        return
    small = {"num_cpus": 1, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, connect=True, head_node_args=small)
    cluster.add_node(**small)


def main() -> None:
    join_or_make()
    day = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="PACK", name="day shift")
    ray.get(day.ready())
    night = placement_group([{"CPU": 1}], strategy="PACK", name="night shift")
    print("ready", flush=True)
    ray.get(night.ready())
    remove_placement_group(day)


if __name__ == "__main__":
    main()
