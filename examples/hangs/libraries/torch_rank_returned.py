"""Two ranks in a barrier; the third has returned from its method without joining it.

Expected: deadlock
Members: Rank.train
Points at: dist.barrier()
Needs: torch
Next step: Make the same calls in the same order on all ranks: rank 2 is missing
"""

import os
import socket

import ray

RANKS = 3


class Rank:
    def __init__(self, rank: int, port: int) -> None:
        import torch.distributed as dist

        self.rank = rank
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)

    def train(self) -> float:
        import torch
        import torch.distributed as dist

        gradient = torch.ones(4)
        if self.rank == 2:
            return 0.0
        dist.barrier()
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
    ray.get([one.__ray_ready__.remote() for one in ranks])
    sums = [one.train.remote() for one in ranks]
    print("ready", flush=True)
    print(ray.get(sums))


if __name__ == "__main__":
    main()
