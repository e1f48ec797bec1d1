"""An actor and a task whose workers take long in an import, before they are connected to Ray (as in ray#40132).

Ray lists these processes nowhere yet: they are children of the raylet. Python imports `sitecustomize` at its start.

Expected: running
Members: driver worker_imports_slowly.py, Shelf.title
Points at: time.sleep(900)
Next step: The worker process is still starting at sitecustomize.py
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import ray

SLOW_IMPORT = """
import time

if __name__ == "sitecustomize":
    time.sleep(900)
"""


class Shelf:
    def title(self) -> str:
        return "Waiting for Godot"


@ray.remote
def count() -> int:
    return 2


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(SLOW_IMPORT)
        environment = {"env_vars": {"PYTHONPATH": folder}}
        shelf: Any = ray.remote(Shelf).options(num_cpus=1, runtime_env=environment).remote()
        results = [shelf.title.remote(), count.options(runtime_env=environment).remote()]
        print("ready", flush=True)
        print(ray.get(results))


if __name__ == "__main__":
    main()
