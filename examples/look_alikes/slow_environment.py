"""A task whose runtime environment is still being installed.

The environment is a wheel that depends on another one, whose server accepts a connection and does not answer for a
quarter of an hour. Until then the task has a CPU, but no worker.

Expected: running
Members: driver slow_environment.py, train
Points at: print(ray.get(train.remote()))
Next step: shows how far the installation is
"""

import os
import socket
import tempfile
import time
import zipfile
from pathlib import Path

import ray

NAME = f"model_{os.getpid()}"
METADATA = """Metadata-Version: 2.1
Name: {name}
Version: 1.0
Requires-Dist: weights @ http://{host}:{port}/weights-1.0-py3-none-any.whl
"""
WHEEL = """Wheel-Version: 1.0
Generator: by hand
Root-Is-Purelib: true
Tag: py3-none-any
"""


def wheel(folder: str, port: int, host: str = "127.0.0.1") -> str:
    path = Path(folder, f"{NAME}-1.0-py3-none-any.whl")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{NAME}.py", f"made_at = {time.time()}\n")
        archive.writestr(f"{NAME}-1.0.dist-info/METADATA", METADATA.format(name=NAME, host=host, port=port))
        archive.writestr(f"{NAME}-1.0.dist-info/WHEEL", WHEEL)
        archive.writestr(f"{NAME}-1.0.dist-info/RECORD", "")
    return str(path)


@ray.remote
def train() -> str:
    return "trained"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.TemporaryDirectory() as folder:
        environment = {"py_modules": [wheel(folder, server.getsockname()[1])]}
        cpus = 2 if address == "local" else None
        ray.init(address, num_cpus=cpus, runtime_env=environment, include_dashboard=False)
        print("ready", flush=True)
        print(ray.get(train.remote()))


if __name__ == "__main__":
    main()
