"""Two actors that each get tensors of the other by Ray Direct Transport, for one caller.

Expected: running
Ends in: Worker.load, 1 directly, 2 in all
Points at: time.sleep(900)
Needs: torch
"""

import os
import time
from typing import Any

import ray

SIZE = 4_000_000
PATIENCE = {"RAY_rdt_fetch_fail_timeout_milliseconds": "900000"}
"""After a minute by default, Ray ends the actors of a transfer."""


class Worker:
    loads = 0

    @ray.method(tensor_transport="gloo")
    def weights(self) -> Any:
        import torch

        return torch.ones(SIZE)

    def load(self, weights: Any) -> float:
        self.loads += 1
        if self.loads > 5:
            time.sleep(900)
        return float(weights.sum())


class Owner:
    def join(self, name: str, workers: list[Any]) -> None:
        from ray.experimental.collective import create_collective_group

        create_collective_group(workers, backend="gloo", name=name)

    def copy(self, source: Any, sink: Any) -> None:
        while True:
            ray.get(sink.load.remote(source.weights.remote()))
            source, sink = sink, source


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(
        address,
        num_cpus=2 if address == "local" else None,
        include_dashboard=False,
        runtime_env={"env_vars": PATIENCE},
    )
    left, right = (ray.remote(num_cpus=0)(Worker).remote() for _ in range(2))
    owner: Any = ray.remote(num_cpus=0)(Owner).remote()
    ray.get(owner.join.remote("both", [left, right]))
    copies = owner.copy.remote(left, right)
    print("ready", flush=True)
    ray.get(copies)


if __name__ == "__main__":
    main()
