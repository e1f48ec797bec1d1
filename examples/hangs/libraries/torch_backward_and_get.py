"""Two ranks in the backward pass of DistributedDataParallel, and a third that calls the first of them.

C++ code reduces the gradients, without Python frames.

Expected: deadlock
Members: Rank.train
Points at: loss.backward()
Needs: torch
Next step: Do not wait for Rank.weight while its rank is in a collective that needs the caller
"""

import os
import socket
from typing import Any

import ray

RANKS = 3


class Rank:
    def __init__(self, rank: int, port: int) -> None:
        import torch
        import torch.distributed as dist

        self.rank = rank
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))

    def weight(self) -> float:
        return 1.0

    def train(self, first: Any) -> float:
        import torch

        batch = torch.ones(2, 4)
        if self.rank == 2:
            batch *= ray.get(first.weight.remote())
        loss = self.model(batch).sum()
        loss.backward()
        return float(loss)


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
