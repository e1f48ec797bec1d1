"""Waits for nodes that an autoscaler adds, cannot add, or has no type of: prints `ready`, then `small has run`."""

import os
from typing import Any

import ray


def main() -> None:
    ray.init(os.environ["RAY_ADDRESS"])

    def submit(name: str, **needs: Any) -> Any:
        return ray.remote(**needs)(lambda: name).options(name=name).remote()

    refs = [submit("fast", resources={"fast": 1}), submit("eight", num_gpus=8)]
    small = submit("small", num_cpus=2)
    print("ready", flush=True)
    print(ray.get(small), "has run", flush=True)
    ray.get(refs)


if __name__ == "__main__":
    main()
