"""A verl worker group in which one rank waits for a reward actor, which calls a rank in a collective.

Rank 0 is in all_reduce. Rank 1 waits in ray.get for the reward actor, which calls rank 0. This call is queued behind
the update that rank 0 runs, which waits for rank 1. The driver waits for the update of the worker group.

Expected: deadlock
Members: Ranks.update, Reward.score
Behind: driver verl_rank_awaits_reward.py
Points at: rewards: float = ray.get(self.reward.score.remote())
Needs: verl
Next step: Do not wait for Ranks.get_loss while its rank is in a collective that needs the caller
"""

import os
from typing import Any

import ray
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

RANKS = 2


class Reward:
    def set_ranks(self, ranks: list[Any]) -> None:
        self.ranks = ranks

    def score(self) -> float:
        return float(ray.get(self.ranks[0].get_loss.remote()))


class Ranks(Worker):  # type: ignore[misc]  # verl has no types
    def __init__(self, reward: Any) -> None:
        import torch.distributed

        super().__init__()
        self.reward = reward
        torch.distributed.init_process_group("gloo")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def update(self) -> float:
        import torch
        import torch.distributed

        loss = torch.ones(1)
        if self.rank == RANKS - 1:
            rewards: float = ray.get(self.reward.score.remote())
            loss *= rewards
        torch.distributed.all_reduce(loss)
        return float(loss)

    def get_loss(self) -> float:
        return 0.5


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    reward: Any = ray.remote(num_cpus=0)(Reward).remote()
    pool = RayResourcePool(process_on_nodes=[RANKS], use_gpu=False, max_colocate_count=1)
    worker_class = RayClassWithInitArgs(ray.remote(num_cpus=0)(Ranks), reward)
    group: Any = RayWorkerGroup(pool, worker_class)
    ray.get(reward.set_ranks.remote(group.workers))
    print("ready", flush=True)
    print(group.update())


if __name__ == "__main__":
    main()
