"""Two ranks in the backward pass of DistributedDataParallel, and a third that still loads its data.

Expected: running
Members: driver torch_backward_late.py
Points at: time.sleep(900.0)
Needs: torch
"""

import os
import socket
import time

import ray

RANKS = 3


class Rank:
    def __init__(self, rank: int, port: int) -> None:
        import torch
        import torch.distributed as dist

        self.rank = rank
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))

    def train(self) -> float:
        import torch

        batch = torch.ones(2, 4)
        if self.rank == 2:
            time.sleep(900.0)
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
    sums = [one.train.remote() for one in ranks]
    print("ready", flush=True)
    print(ray.get(sums))


if __name__ == "__main__":
    main()
