"""A Tune run whose trials report every 20 seconds; some trials wait until others have ended.

Expected: running (finding: starved)
Members: driver tune_slow_trials.py
Points at: time.sleep(20.0)
Needs: ray[tune]
"""

import os
import time
from typing import Any

import ray
from ray import tune


def fit(config: dict[str, Any]) -> None:
    for step in range(45):
        time.sleep(20.0)
        tune.report({"score": config["rate"] * step})


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    print("ready", flush=True)
    print(tune.Tuner(fit, param_space={"rate": tune.grid_search([1, 2, 3, 4])}).fit())


if __name__ == "__main__":
    main()
