"""A GPU that a detached actor of an earlier job still holds.

The first program starts a detached notebook on the GPU, and ends. The notebook is not used any more, but holds the GPU
until it is killed by name. A task of the second program waits for a GPU.

Expected: running (finding: starved)
Members: driver detached_gpu.py, train
Points at: print(ray.get(train.remote()))
Next step: End actor Notebook "notebook" if nothing needs it any more
"""

import os
import subprocess
import sys
from typing import Any

import ray


class Notebook:
    pass


@ray.remote(num_gpus=1)
def train() -> str:
    return "trained"


def start_notebook() -> None:
    options = {"num_gpus": 1, "name": "notebook", "namespace": "yesterday", "lifetime": "detached"}
    notebook: Any = ray.remote(Notebook).options(**options).remote()
    ray.get(notebook.__ray_ready__.remote())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    ray.init(address, num_cpus=2 if own else None, num_gpus=1 if own else None, include_dashboard=False)
    if sys.argv[1:] == ["yesterday"]:
        start_notebook()
        return
    home = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    subprocess.run([sys.executable, __file__, "yesterday"], env={**os.environ, **home}, check=True)
    print("ready", flush=True)
    print(ray.get(train.remote()))


if __name__ == "__main__":
    main()
