"""Ranks of torch.distributed on gloo that alternate collectives of two groups, sends and calls of an actor."""

import os
import random
import time

import ray

RANKS = 3


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
    def port(self) -> int:
        from torch.distributed import TCPStore

        self.store = TCPStore("127.0.0.1", 0, RANKS, is_master=True, wait_for_workers=False)
        return int(self.store.port)

    def join(self, port: int) -> None:
        import torch.distributed as dist

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(self.rank), WORLD_SIZE=str(RANKS))
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is there already
        dist.init_process_group("gloo")
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


def main() -> None:
    ray.init(log_to_driver=False)
    reward = Reward.remote()
    ranks = [Rank.remote(rank, reward) for rank in range(RANKS)]
    port = ray.get(ranks[0].port.remote())
    ray.get([rank.join.remote(port) for rank in ranks])
    print("ready", flush=True)
    while True:
        steps = random.randrange(1, 40)
        ray.get([rank.update.remote(steps) for rank in ranks])


if __name__ == "__main__":
    main()
