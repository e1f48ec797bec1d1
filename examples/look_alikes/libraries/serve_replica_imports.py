"""A Serve application that is starting: the constructor of its replica imports a package that takes long to load.

Expected: running (finding: polling)
Members: driver serve_replica_imports.py
Points at: from large_model import Weights  # type: ignore[import-not-found]
Needs: ray[serve]
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray import serve


class Model:
    def __init__(self) -> None:
        from large_model import Weights  # type: ignore[import-not-found]

        self.weights = Weights()

    def __call__(self, factor: float) -> float:
        total: float = factor * sum(self.weights)
        return total


def package() -> str:
    """The folder of a package that takes a quarter of an hour to import."""
    folder = Path(tempfile.mkdtemp()) / "site-packages"
    (folder / "large_model").mkdir(parents=True)
    (folder / "large_model" / "__init__.py").write_text("from large_model.layers import Weights")
    (folder / "large_model" / "layers.py").write_text("import time\ntime.sleep(900.0)\nWeights = list\n")
    return str(folder)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    paths = {"env_vars": {"PYTHONPATH": package()}}
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False, runtime_env=paths)
    serve.start(http_options={"location": "NoServer"})
    print("ready", flush=True)
    model: Any = serve.deployment(Model)
    handle = serve.run(model.bind(), route_prefix=None)
    print(handle.remote(2.0).result())


if __name__ == "__main__":
    main()
