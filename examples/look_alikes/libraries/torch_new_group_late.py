"""A rank that makes a new group with another, which arrives late.

Expected: running
Members: driver torch_new_group_late.py
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

    def weight(self) -> float:
        return 1.0

    def split(self) -> int:
        import torch.distributed as dist

        if self.rank == 1:
            time.sleep(900.0)
        group = dist.new_group([0, 1], group_desc="mesh_dp")
        return dist.get_rank(group)


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
    split = [one.split.remote() for one in ranks]
    print("ready", flush=True)
    print(ray.get(split))


if __name__ == "__main__":
    main()
