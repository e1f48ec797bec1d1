"""Two ranks that gather objects, and a third that waits for a call to one of them.

Expected: deadlock
Members: Rank.gather
Points at: dist.all_gather_object(scores, self.rank)
Needs: torch
Next step: Do not wait for Rank.score while its rank is in a collective that needs the caller
"""

import os
import socket
from typing import Any

import ray

RANKS = 3


class Rank:
    def __init__(self, rank: int, port: int) -> None:
        import torch.distributed as dist

        self.rank = rank
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)

    def score(self) -> float:
        return 1.0

    def gather(self, first: Any) -> int:
        import torch.distributed as dist

        scores: list[Any] = [None] * RANKS
        if self.rank == 2:
            ray.get(first.score.remote())
        dist.all_gather_object(scores, self.rank)
        return sum(scores)


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
    sums = [one.gather.remote(ranks[0]) for one in ranks]
    print("ready", flush=True)
    print(ray.get(sums))


if __name__ == "__main__":
    main()
