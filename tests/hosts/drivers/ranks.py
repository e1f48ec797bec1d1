"""Ranks of torch.distributed on several hosts, of which the last leaves out a call: ranks.py NODE_ID...

Rank 0 meets the others at its host's address. Prints `ready` once all ranks have begun to train.
"""

import os
import sys

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PORT = 29_517


class Rank:
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def address(self) -> str:
        return ray.util.get_node_ip_address()

    def meet(self, address: str) -> None:
        import torch.distributed as dist

        os.environ["GLOO_SOCKET_IFNAME"] = next(name for name in os.listdir("/sys/class/net") if name != "lo")
        dist.init_process_group("gloo", init_method=f"tcp://{address}:{PORT}", rank=self.rank, world_size=self.size)

    def train(self) -> None:
        import torch
        import torch.distributed as dist

        gradients = torch.ones(4)
        for step in range(20):
            dist.all_reduce(gradients)
            if self.rank == self.size - 1 and step == 12:
                continue
            dist.broadcast(gradients, 0)
        dist.barrier()


def main() -> None:
    ray.init(log_to_driver=False)
    nodes = sys.argv[1:]
    actor = ray.remote(num_cpus=0)(Rank)
    on = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes]
    ranks = [actor.options(scheduling_strategy=on[at]).remote(at, len(nodes)) for at in range(len(nodes))]
    address = ray.get(ranks[0].address.remote())
    ray.get([rank.meet.remote(address) for rank in ranks])
    calls = [rank.train.remote() for rank in ranks]
    print("ready", flush=True)
    ray.get(calls)


if __name__ == "__main__":
    main()
