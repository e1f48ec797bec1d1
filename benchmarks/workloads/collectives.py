"""Ranks of torch.distributed on gloo that alternate collectives of two groups, sends and calls of an actor."""

import os
import random
import time
from datetime import timedelta
from typing import Any

import ray

from benchmarks.soak.rounds import play_for_ever

RANKS = 3
TIMEOUT_S = 60
"""How long a rank waits for one on a lost host."""


@ray.remote(num_cpus=0)
class Reward:
    def score(self, rank: int) -> float:
        time.sleep(random.uniform(0, 0.1))
        return float(rank)


@ray.remote(num_cpus=0, concurrency_groups={"state": 1})
class Rank:
    def __init__(self, rank: int, reward: ray.actor.ActorHandle[Reward]) -> None:
        self.rank = rank
        self.reward = reward

    @ray.method(concurrency_group="state")
    def address(self) -> tuple[str, int]:
        from torch.distributed import TCPStore

        self.store = TCPStore("0.0.0.0", 0, RANKS, is_master=True, wait_for_workers=False)
        return ray.util.get_node_ip_address(), int(self.store.port)

    def join(self, ip: str, port: int) -> None:
        import torch.distributed as dist

        os.environ.update(MASTER_ADDR=ip, MASTER_PORT=str(port), RANK=str(self.rank), WORLD_SIZE=str(RANKS))
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is there already
        dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
        self.pair = dist.new_group([0, 1], group_desc="mesh_tp")

    def update(self, steps: int) -> float:
        import torch
        import torch.distributed as dist

        loss = torch.ones(1)
        for step in range(steps):
            time.sleep(random.uniform(0, 0.02))
            dist.all_reduce(loss)
            dist.broadcast(loss, src=step % RANKS)
            if self.rank < 2:
                dist.all_reduce(loss, group=self.pair)
            if step % RANKS == self.rank:
                loss *= float(ray.get(self.reward.score.remote(self.rank)))
            if self.rank == 0:
                dist.send(loss, dst=1)
            elif self.rank == 1:
                dist.recv(loss, src=0)
            dist.barrier()
            loss.fill_(1.0)
        return float(loss)


def gather() -> list[Any]:
    reward = Reward.remote()
    ranks = [Rank.remote(rank, reward) for rank in range(RANKS)]
    ip, port = ray.get(ranks[0].address.remote())
    ray.get([rank.join.remote(ip, port) for rank in ranks])
    return ranks


def update(ranks: list[Any]) -> None:
    steps = random.randrange(1, 40)
    ray.get([rank.update.remote(steps) for rank in ranks])


def main() -> None:
    ray.init(log_to_driver=False)
    play_for_ever(gather, update)


if __name__ == "__main__":
    main()
