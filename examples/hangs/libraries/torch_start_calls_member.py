"""A rank that asks the first rank for its address, which already waits for it in init_process_group.

Expected: deadlock
Members: Rank.start
Points at: host = ray.get(first.address.remote())
Needs: torch
Next step: Do not wait for Rank.address while its rank is in a collective that needs the caller
"""

import os
import socket
from typing import Any

import ray

RANKS = 2


class Rank:
    def address(self) -> str:
        return "127.0.0.1"

    def start(self, rank: int, port: int, first: Any) -> int:
        import torch.distributed as dist

        host = "127.0.0.1"
        if rank == 1:
            host = ray.get(first.address.remote())
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
    started = [one.start.remote(i, port, ranks[0]) for i, one in enumerate(ranks)]
    print("ready", flush=True)
    print(ray.get(started))


if __name__ == "__main__":
    main()
