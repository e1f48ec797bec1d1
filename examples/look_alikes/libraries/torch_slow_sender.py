"""A rank that receives from another, which computes before it sends.

Expected: running
Members: driver torch_slow_sender.py
Points at: time.sleep(900.0)
Needs: torch
"""

import os
import socket
import time

import ray

RANKS = 2


class Rank:
    def __init__(self, rank: int, port: int) -> None:
        import torch.distributed as dist

        self.rank = rank
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)

    def exchange(self) -> float:
        import torch
        import torch.distributed as dist

        mine, theirs = torch.ones(4), torch.zeros(4)
        if self.rank == 0:
            dist.recv(theirs, src=1)
        else:
            time.sleep(900.0)
            dist.send(mine, dst=0)
        return float(theirs.sum())


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
    sums = [one.exchange.remote() for one in ranks]
    print("ready", flush=True)
    print(ray.get(sums))


if __name__ == "__main__":
    main()
