"""A trainer that receives weights from an engine of another world, which still loads them.

The second trainer is in a barrier of the trainers' own world. Its rank there is that of the engine in the other group.

Expected: running
Members: driver torch_weights_of_slow_engine.py
Points at: time.sleep(900.0)
Needs: torch
"""

import os
import socket
import time
from typing import Any

import ray


def weights_group(rank: int, port: int) -> Any:
    """A group of a trainer and an engine, which are in two worlds, as frameworks for RLHF make it."""
    from torch.distributed import distributed_c10d as c10d

    world: Any = c10d
    timeout, backend = world.default_pg_timeout, world.Backend("gloo")
    store, rank, size = next(world.rendezvous(f"tcp://127.0.0.1:{port}", rank, 2, timeout=timeout))
    prefixed = world.PrefixStore("weights", store)
    group, _ = world._new_process_group_helper(size, rank, [], backend, prefixed, "weights", timeout=timeout)
    world._world.pg_group_ranks[group] = {i: i for i in range(size)}
    return group


class Engine:
    def connect(self, port: int) -> None:
        self.group = weights_group(1, port)

    def update(self) -> float:
        import torch
        import torch.distributed as dist

        weight = torch.zeros(4)
        time.sleep(900.0)
        dist.broadcast(weight, src=1, group=self.group)
        return float(weight.sum())


class Trainer:
    def start(self, rank: int, port: int) -> None:
        import torch.distributed as dist

        self.rank = rank
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

    def connect(self, port: int) -> None:
        self.group = weights_group(0, port)

    def version(self) -> int:
        return 1

    def step(self) -> float:
        import torch
        import torch.distributed as dist

        weight = torch.ones(4)
        if self.rank == 0:
            dist.broadcast(weight, src=1, group=self.group)
        dist.barrier()
        return float(weight.sum())


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    first, second = (ray.remote(Trainer).options(name=f"trainer {i}", num_cpus=0.25).remote() for i in range(2))
    engine = ray.remote(Engine).options(name="engine", num_cpus=0.25).remote()
    port, weights_port = free_port(), free_port()
    ray.get([first.start.remote(0, port), second.start.remote(1, port)])
    ray.get([first.connect.remote(weights_port), engine.connect.remote(weights_port)])
    steps = [engine.update.remote(), first.step.remote(), second.step.remote()]
    print("ready", flush=True)
    print(ray.get(steps))


if __name__ == "__main__":
    main()
