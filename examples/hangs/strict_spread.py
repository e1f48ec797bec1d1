"""A placement group with more bundles than there are nodes, each on a node of its own.

The bundles ask for almost nothing. STRICT_SPREAD requires three nodes, and there are two.

Needs: two nodes
Expected: hang (finding: infeasible)
Members: placement group witnesses
Points at: ray.get(group.ready())
Next step: For placement group witnesses use the strategy SPREAD instead of STRICT_SPREAD
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
    group = placement_group([{"CPU": 0.1}] * 3, strategy="STRICT_SPREAD", name="witnesses")
    print("ready", flush=True)
    ray.get(group.ready())


if __name__ == "__main__":
    main()
