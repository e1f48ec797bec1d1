"""Four ranks in a grid: two reduce in their row first, and two in their column.

Rank 0 waits for 1 in a row, 1 for 3 in a column, 3 for 2 in a row, 2 for 0 in a column.

Expected: deadlock
Members: Rank.train
Points at: dist.all_reduce(gradient, group=group)
Needs: torch
Next step: Call all_reduce of group mesh_tp and all_reduce of group mesh_dp in the same order on all ranks
"""

import os
import socket

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
        for group in (self.tp, self.dp) if self.rank in (0, 3) else (self.dp, self.tp):
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
