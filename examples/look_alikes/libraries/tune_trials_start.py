"""A Tune run that is starting: the worker processes of its trials load weights in a setup hook, which takes long.

Expected: running (finding: polling)
Members: driver tune_trials_start.py
Points at: time.sleep(seconds)
Needs: ray[tune]
"""

import os
import time
from typing import Any

import ray
from ray import tune


def load_weights() -> None:
    read(900.0)


def read(seconds: float) -> None:
    time.sleep(seconds)


def fit(config: dict[str, Any]) -> None:
    for step in range(45):
        tune.report({"score": config["rate"] * step})


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    hook = {"worker_process_setup_hook": load_weights}
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False, runtime_env=hook)
    print("ready", flush=True)
    print(tune.Tuner(fit, param_space={"rate": tune.grid_search([1, 2])}).fit())


if __name__ == "__main__":
    main()
