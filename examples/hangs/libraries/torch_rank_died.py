"""Two ranks that create a process group with a third, whose process has ended.

Expected: hang (finding: orphaned)
Members: Rank.start
Points at: dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
Needs: torch
Next step: Restart all ranks of the group: rank 2 died
"""

import os
import socket

import ray

RANKS = 3


class Rank:
    def start(self, rank: int, port: int) -> int:
        import torch.distributed as dist

        if rank == 2:
            os._exit(1)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
        return dist.get_rank()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    port = free_port()
    ranks = [ray.remote(Rank).options(name=f"rank {i}", num_cpus=0.25).remote() for i in range(RANKS)]
    ray.get([one.__ray_ready__.remote() for one in ranks])
    started = [one.start.remote(i, port) for i, one in enumerate(ranks)]
    print("ready", flush=True)
    print([ray.get(one) for one in started])


if __name__ == "__main__":
    main()
