"""One bundle of two CPUs on two nodes with one CPU each (as in ray#47792).

The cluster has the two CPUs, but a bundle is never split.

Needs: two nodes
Expected: hang (finding: infeasible)
Members: placement group pair
Points at: ray.get(group.ready())
Next step: Reduce what placement group pair asks for
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


def main() -> None:
    join_or_make()
    group = placement_group([{"CPU": 2}], name="pair")
    print("ready", flush=True)
    ray.get(group.ready())


if __name__ == "__main__":
    main()
