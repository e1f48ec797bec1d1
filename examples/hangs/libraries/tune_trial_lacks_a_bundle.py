"""A Tune trial whose second simulator has no bundle in the trial's placement group.

The group has a bundle for the trial and one for a simulator, and all tasks of the trial run inside the group. The trial
waits for its second simulator, the first holds its bundle, and the driver polls the trial.

Expected: deadlock
Members: Simulator.run
Points at: scores = ray.get([simulator.run.remote() for simulator in simulators])
Needs: ray[tune]
Next step: Set num_cpus=0 for actor Simulator
"""

import os
from typing import Any

import ray
from ray import tune


class Simulator:
    def run(self) -> float:
        return 0.5


def fit(config: dict[str, Any]) -> None:
    simulators: list[Any] = [ray.remote(num_cpus=1)(Simulator).remote() for _ in range(2)]
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
