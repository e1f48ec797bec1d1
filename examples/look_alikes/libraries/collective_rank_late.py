"""A rank in an allreduce of ray.util.collective, and one that is late.

Expected: running
Members: driver collective_rank_late.py
Points at: time.sleep(900.0)
Needs: torch
"""

import os
import time

import ray

RANKS = 2


class Rank:
    def start(self, rank: int) -> None:
        from ray.util import collective
        from ray.util.collective.types import Backend

        self.rank = rank
        collective.init_collective_group(RANKS, rank, backend=Backend("gloo"), group_name="gradients")

    def weight(self) -> float:
        return 1.0

    def train(self) -> float:
        import torch
        from ray.util import collective

        gradient = torch.ones(4)
        if self.rank == 1:
            time.sleep(900.0)
        collective.allreduce(gradient, group_name="gradients")
        return float(gradient.sum())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    ranks = [ray.remote(Rank).options(name=f"rank {i}", num_cpus=0.25).remote() for i in range(RANKS)]
    ray.get([one.start.remote(i) for i, one in enumerate(ranks)])
    sums = [one.train.remote() for one in ranks]
    print("ready", flush=True)
    print(ray.get(sums))


if __name__ == "__main__":
    main()
