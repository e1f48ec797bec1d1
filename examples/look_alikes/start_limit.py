"""Tasks whose worker processes are started by a program that takes long before it runs Python.

A node starts as many at a time as it has CPUs; the other tasks wait for that, though they need no CPU.

Expected: running
Members: simulate
Next step: shows why no worker process connects
"""

import os
import sys
import tempfile

import ray

WRAPPER = f"""#!/bin/sh
sleep 120
exec {sys.executable} "$@"
"""


def simulate() -> int:
    return 1


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as wrapper:
        wrapper.write(WRAPPER)
    os.chmod(wrapper.name, 0o700)
    slow = ray.remote(simulate).options(num_cpus=0, runtime_env={"py_executable": wrapper.name})
    tasks = [slow.remote() for _ in range(5)]
    print("ready", flush=True)
    print(ray.get(tasks))


if __name__ == "__main__":
    main()
