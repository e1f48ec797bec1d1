"""A driver that is rank 0 of a group, in an all_reduce with a worker that still computes.

Expected: running
Members: driver torch_driver_awaits_slow_worker.py
Points at: time.sleep(seconds)
Needs: torch
"""

import os
import socket
import time

import ray


class Worker:
    def start(self, port: int) -> None:
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=1, world_size=2)

    def execute_model(self, batch: list[float], seconds: float) -> float:
        import torch
        import torch.distributed as dist

        time.sleep(seconds)
        logits = torch.tensor([sum(batch) / len(batch)])
        dist.all_reduce(logits)
        return float(logits[0])


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    import torch
    import torch.distributed as dist

    worker = ray.remote(Worker).options(name="worker", num_cpus=0.25).remote()
    port = free_port()
    started = worker.start.remote(port)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=2)
    ray.get(started)
    output = worker.execute_model.remote([1.0], 900.0)
    print("ready", flush=True)
    dist.all_reduce(torch.ones(1))
    print(ray.get(output))


if __name__ == "__main__":
    main()
