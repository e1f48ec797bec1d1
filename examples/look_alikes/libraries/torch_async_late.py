"""Two ranks that have started an all_reduce, the first of which waits for it, and a rank that is late.

Rank 1 has started the all_reduce and calls rank 0 before it waits. Only rank 2 is missing, and it will join.

Expected: running
Members: driver torch_async_late.py
Points at: time.sleep(900.0)
Needs: torch
"""

import os
import socket
import time
from typing import Any

import ray

RANKS = 3


class Rank:
    def __init__(self, rank: int, port: int) -> None:
        import torch.distributed as dist

        self.rank = rank
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)

    def weight(self) -> float:
        return 1.0

    def train(self, first: Any) -> float:
        import torch
        import torch.distributed as dist

        gradient = torch.ones(4)
        if self.rank == 2:
            time.sleep(900.0)
        work = dist.all_reduce(gradient, async_op=True)
        if self.rank == 1:
            ray.get(first.weight.remote())
        work.wait()
        return float(gradient.sum())


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    port = free_port()
    ranks = [ray.remote(Rank).options(name=f"rank {i}", num_cpus=0.25).remote(i, port) for i in range(RANKS)]
    ray.get([one.__ray_ready__.remote() for one in ranks])
    sums = [one.train.remote(ranks[0]) for one in ranks]
    print("ready", flush=True)
    print(ray.get(sums))


if __name__ == "__main__":
    main()
