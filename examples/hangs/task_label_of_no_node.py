"""A task that may run only on nodes with a label that no node has, nor that of its fallback strategy.

There are enough CPUs, but none of them is on a node with one of these labels.

Expected: hang (finding: infeasible)
Members: survey
Points at: print(ray.get(task))
Next step: Change the label selector of survey (zone: antarctica or zone: moon)
"""

import os
from typing import Any

import ray


def survey() -> str:
    return "cold"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    places: dict[str, Any] = {
        "label_selector": {"zone": "antarctica"},
        "fallback_strategy": [{"label_selector": {"zone": "moon"}}],
    }
    task = ray.remote(survey).options(**places).remote()
    print("ready", flush=True)
    print(ray.get(task))


if __name__ == "__main__":
    main()
