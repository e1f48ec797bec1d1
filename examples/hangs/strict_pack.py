"""A placement group that must fit on one node and is too large for any.

Each bundle fits on a node by itself. STRICT_PACK requires both on the same node.

Needs: two nodes
Expected: hang (finding: infeasible)
Members: placement group twins
Points at: ray.get(group.ready())
Next step: For placement group twins use the strategy PACK instead of STRICT_PACK
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
    group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_PACK", name="twins")
    print("ready", flush=True)
    ray.get(group.ready())


if __name__ == "__main__":
    main()
