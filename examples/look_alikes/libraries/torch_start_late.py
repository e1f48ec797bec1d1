"""A rank that makes a process group with another, which arrives late.

Expected: running
Members: driver torch_start_late.py
Points at: time.sleep(900.0)
Needs: torch
"""

import os
import socket
import time

import ray

RANKS = 2


class Rank:
    def address(self) -> str:
        return "127.0.0.1"

    def start(self, rank: int, port: int) -> int:
        import torch.distributed as dist

        host = "127.0.0.1"
        if rank == 1:
            time.sleep(900.0)
        dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=RANKS)
        return dist.get_rank()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    port = free_port()
    ranks = [ray.remote(Rank).options(name=f"rank {i}", num_cpus=0.25).remote() for i in range(RANKS)]
    ray.get([one.__ray_ready__.remote() for one in ranks])
    started = [one.start.remote(i, port) for i, one in enumerate(ranks)]
    print("ready", flush=True)
    print(ray.get(started))


if __name__ == "__main__":
    main()
