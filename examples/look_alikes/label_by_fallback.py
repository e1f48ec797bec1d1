"""An actor for a label that no node has, with a fallback strategy: the node that this allows is busy for a while.

Expected: running (finding: starved)
Members: Station.__init__
"""

import os
import time
from typing import Any

import ray


def hold() -> None:
    time.sleep(600)


class Station:
    def report(self) -> str:
        return "mild"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    is_local = address == "local"
    ray.init(address, num_cpus=2 if is_local else None, num_gpus=1 if is_local else None, include_dashboard=False)
    holding = ray.remote(hold).options(num_gpus=1).remote()
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    places: dict[str, Any] = {
        "label_selector": {"zone": "antarctica"},
        "fallback_strategy": [{"label_selector": here}],
    }
    time.sleep(5)
    station: Any = ray.remote(Station).options(num_gpus=1, **places).remote()
    print("ready", flush=True)
    print(ray.get([station.report.remote(), holding]))


if __name__ == "__main__":
    main()
