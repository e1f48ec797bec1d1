"""A driver that asks again and again whether its placement group is there (as in ray#27287).

It asks with a timeout, so it could do something else at any time. But the group wants a kind of resource that no node
has, and will never be there.

Expected: hang (finding: infeasible)
Members: placement group pasture
"""

import os

import ray
from ray.util.placement_group import placement_group


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    group = placement_group([{"CPU": 1}, {"unicorn": 1}], name="pasture")
    print("ready", flush=True)
    while not group.wait(1):
        pass


if __name__ == "__main__":
    main()
