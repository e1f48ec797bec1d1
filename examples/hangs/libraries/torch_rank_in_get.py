"""Three ranks in an all_reduce, and a fourth that calls a reward actor, which calls the first rank.

Rank 0 cannot answer the reward actor before the all_reduce ends, and the all_reduce needs rank 3.

Expected: deadlock
Members: Rank.train, Reward.score
Points at: dist.all_reduce(gradient)
Needs: torch
Next step: Do not wait for Rank.weight while its rank is in a collective that needs the caller
"""

import os
import socket
from typing import Any

import ray

RANKS = 4


class Reward:
    def __init__(self, rank: Any) -> None:
        self.rank = rank

    def score(self) -> float:
        return float(ray.get(self.rank.weight.remote()))


class Rank:
    def __init__(self, rank: int, port: int) -> None:
        import torch.distributed as dist

        self.rank = rank
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)

    def weight(self) -> float:
        return 1.0

    def train(self, reward: Any) -> float:
        import torch
        import torch.distributed as dist

        gradient = torch.ones(4)
        if self.rank == 3:
            gradient *= ray.get(reward.score.remote())
        dist.all_reduce(gradient)
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
    reward = ray.remote(Reward).options(num_cpus=0.25).remote(ranks[0])
    ray.get([one.__ray_ready__.remote() for one in ranks])
    sums = [one.train.remote(reward) for one in ranks]
    print("ready", flush=True)
    print(ray.get(sums))


if __name__ == "__main__":
    main()
