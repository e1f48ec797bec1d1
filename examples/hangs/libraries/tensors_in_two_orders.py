"""Two actors that each get tensors of the other by Ray Direct Transport, for two callers.

Each actor makes its transfers in the order in which they arrive. Sooner or later both actors send to each other at the
same time, and neither begins to receive.

Expected: deadlock
Members: Owner.copy, Worker.load
Points at: ray.get(sink.load.remote(source.weights.remote()))
Needs: torch
Next step: Let one process request all transfers between these actors, or wait for each transfer
"""

import os
from typing import Any

import ray

SIZE = 4_000_000
PATIENCE = {"RAY_rdt_fetch_fail_timeout_milliseconds": "900000"}
"""After a minute by default, Ray ends the actors of a transfer."""


class Worker:
    @ray.method(tensor_transport="gloo")
    def weights(self) -> Any:
        import torch

        return torch.ones(SIZE)

    def load(self, weights: Any) -> float:
        return float(weights.sum())


class Owner:
    def join(self, name: str, workers: list[Any]) -> None:
        from ray.experimental.collective import create_collective_group

        create_collective_group(workers, backend="gloo", name=name)

    def copy(self, source: Any, sink: Any) -> None:
        while True:
            ray.get(sink.load.remote(source.weights.remote()))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(
        address,
        num_cpus=2 if address == "local" else None,
        include_dashboard=False,
        runtime_env={"env_vars": PATIENCE},
    )
    left, right = (ray.remote(num_cpus=0)(Worker).remote() for _ in range(2))
    there, back = (ray.remote(num_cpus=0)(Owner).remote() for _ in range(2))
    ray.get(there.join.remote("there", [left, right]))
    ray.get(back.join.remote("back", [left, right]))
    copies = [there.copy.remote(left, right), back.copy.remote(right, left)]
    print("ready", flush=True)
    ray.get(copies)


if __name__ == "__main__":
    main()
