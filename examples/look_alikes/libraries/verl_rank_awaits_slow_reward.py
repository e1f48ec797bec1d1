"""A verl worker group in which one rank waits for a slow reward, while the other is in a collective.

Rank 0 is in all_reduce. Rank 1 waits in ray.get for the reward actor, which computes. After that rank 1 joins the
collective.

Expected: running
Members: Ranks.update, driver verl_rank_awaits_slow_reward.py
Points at: time.sleep(3600)
Needs: verl
"""

import os
import time
from typing import Any

import ray
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

RANKS = 2


class Reward:
    def score(self) -> float:
        time.sleep(3600)
        return 0.5


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


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    reward: Any = ray.remote(num_cpus=0)(Reward).remote()
    pool = RayResourcePool(process_on_nodes=[RANKS], use_gpu=False, max_colocate_count=1)
    worker_class = RayClassWithInitArgs(ray.remote(num_cpus=0)(Ranks), reward)
    group: Any = RayWorkerGroup(pool, worker_class)
    print("ready", flush=True)
    print(group.update())


if __name__ == "__main__":
    main()
