"""A task with the only licence, which waits for another task that needs it.

Licences are a custom resource, of which the cluster has one. A waiting task keeps it, as it keeps a GPU; it would
release a CPU.

Expected: deadlock
Members: solve, refine
Points at: return ray.get(refine.remote(0.5))
Next step: Add 1 licence
"""

import os

import ray


@ray.remote(resources={"licence": 1})
def refine(value: float) -> float:
    return value / 2


@ray.remote(resources={"licence": 1})
def solve() -> float:
    return ray.get(refine.remote(0.5))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    licences = {"licence": 1} if own else None
    ray.init(address, num_cpus=2 if own else None, resources=licences, include_dashboard=False)
    value = solve.remote()
    print("ready", flush=True)
    print(ray.get(value))


if __name__ == "__main__":
    main()
