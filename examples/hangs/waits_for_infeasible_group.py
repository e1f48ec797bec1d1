"""A driver that polls for its placement group, which no node can hold (as in ray#27287).

It polls with a timeout, so it could proceed at any time. But the group needs a resource that no node has, and will
never be created.

Expected: hang (finding: infeasible)
Members: placement group pasture
Next step: Reduce what placement group pasture asks for
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
