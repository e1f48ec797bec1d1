"""Tasks that hold every CPU while each waits for a Data pipeline, whose tasks need a CPU.

Each of the two tasks keeps its CPU: a pipeline runs in a thread of its own, and `ray.get` releases a CPU only in the
main thread. Its executor thread polls without end.

Expected: deadlock
Members: prepare
Points at: return ray.data.range(1).map(double).materialize().count()
Needs: ray[data]
Next step: Set num_cpus=0 for prepare
"""

import os
from typing import Any

import ray


def double(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"] * 2}


@ray.remote(num_cpus=1)
def prepare() -> int:
    return ray.data.range(1).map(double).materialize().count()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    counts = [prepare.remote() for _ in range(2)]
    print("ready", flush=True)
    print(ray.get(counts))


if __name__ == "__main__":
    main()
