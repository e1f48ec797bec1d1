"""A Train run that is starting: the worker processes of its group load a module before they can run anything.

Expected: running
Members: driver train_workers_start.py
Points at: time.sleep(900.0)
Needs: ray[train]
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
from ray import train
from ray.train import ScalingConfig
from ray.train.v2.api.config import RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


def epochs() -> None:
    for step in range(45):
        time.sleep(2.0)
        train.report({"loss": 1.0 / (1 + step)})


def tracer() -> str:
    """The folder of a module that Python imports at the start of each process, and that takes a quarter of an hour."""
    folder = Path(tempfile.mkdtemp())
    (folder / "sitecustomize.py").write_text("import time\ntime.sleep(900.0)\n")
    return str(folder)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    run: Any = RunConfig(worker_runtime_env={"env_vars": {"PYTHONPATH": tracer()}})
    print("ready", flush=True)
    print(DataParallelTrainer(epochs, scaling_config=ScalingConfig(num_workers=2), run_config=run).fit())


if __name__ == "__main__":
    main()
