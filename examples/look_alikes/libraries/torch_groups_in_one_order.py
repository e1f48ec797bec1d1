"""Four ranks in a grid that all reduce in their row first, then in their column; one is late.

Expected: running
Members: driver torch_groups_in_one_order.py
Points at: time.sleep(900.0)
Needs: torch
"""

import os
import socket
import time

import ray

RANKS = 4


class Rank:
    def __init__(self, rank: int, port: int) -> None:
        import torch.distributed as dist

        self.rank = rank
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
        rows = [dist.new_group(ranks, group_desc="mesh_tp") for ranks in ([0, 1], [2, 3])]
        columns = [dist.new_group(ranks, group_desc="mesh_dp") for ranks in ([0, 2], [1, 3])]
        self.tp, self.dp = rows[rank // 2], columns[rank % 2]

    def train(self) -> float:
        import torch
        import torch.distributed as dist

        gradient = torch.ones(4)
        if self.rank == 3:
            time.sleep(900.0)
        for group in (self.tp, self.dp):
            dist.all_reduce(gradient, group=group)
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
