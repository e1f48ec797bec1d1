"""A task whose worker processes die before they connect to Ray, which starts another one each minute, for ever.

The program that is to run them ends at once, as one that lacks a library does.

Expected: running
Later: hang, once the cause of their death is read
Members: simulate
Points at: print(ray.get(task))
Next step: shows why no worker process connects
"""

import os

import ray


def simulate() -> int:
    return 1


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    task = ray.remote(simulate).options(runtime_env={"py_executable": "/bin/false"}).remote()
    print("ready", flush=True)
    print(ray.get(task))


if __name__ == "__main__":
    main()
