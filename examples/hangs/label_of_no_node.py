"""An actor that may run only on nodes with a label that no node has.

There are enough CPUs, but none of them is on a node with that label.

Expected: hang (finding: infeasible)
Members: station:Station.__init__
Points at: print(ray.get(station.report.remote()))
Next step: Change the label selector of station:Station.__init__ (zone: antarctica)
"""

import os
from typing import Any

import ray


class Station:
    def report(self) -> str:
        return "cold"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    station: Any = ray.remote(Station).options(name="station", label_selector={"zone": "antarctica"}).remote()
    print("ready", flush=True)
    print(ray.get(station.report.remote()))


if __name__ == "__main__":
    main()
