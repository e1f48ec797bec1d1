"""A Tune trial with a bundle for each of its simulators, which are slow.

The group has a bundle for the trial and one for its only simulator. The trial waits for the simulator, and the driver
polls the trial.

Expected: running (finding: polling)
Members: fit
Points at: time.sleep(900.0)
Needs: ray[tune]
"""

import os
import time
from typing import Any

import ray
from ray import tune


class Simulator:
    def run(self) -> float:
        time.sleep(900.0)
        return 0.5


def fit(config: dict[str, Any]) -> None:
    simulators: list[Any] = [ray.remote(num_cpus=1)(Simulator).remote() for _ in range(1)]
    scores = ray.get([simulator.run.remote() for simulator in simulators])
    tune.report({"score": sum(scores)})


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    group = tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}])
    print("ready", flush=True)
    print(tune.Tuner(tune.with_resources(fit, group)).fit())


if __name__ == "__main__":
    main()
