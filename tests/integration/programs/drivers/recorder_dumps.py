"""Ranks whose watchdog gives up: each dumps its flight recorder as torch does, and ends. Rank 2 left out a call.

The arguments are the prefix of the files, and a folder of recorded ones for a Python without torch, or ``torch``.
"""

import datetime
import os
import pickle
import socket
import sys
import time
from pathlib import Path
from typing import Any

import ray

SIZE = 4


class Trainer:
    def __init__(self, rank: int) -> None:
        self.rank = rank

    def train(self, source: str, port: int) -> None:
        data = self.recorded(Path(source)) if source != "torch" else self.collect(port)
        Path(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{self.rank}").write_bytes(data)
        os._exit(6)

    def recorded(self, folder: Path) -> bytes:
        """The file of this rank, as if its calls had been made now."""
        dump = pickle.loads((folder / f"rank_{self.rank}").read_bytes())
        for entry in dump["entries"]:
            entry["time_created_ns"] = time.time_ns()
        return pickle.dumps(dump, protocol=2)

    def collect(self, port: int) -> bytes:
        import torch
        import torch.distributed as dist

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        limit = datetime.timedelta(seconds=3)
        dist.init_process_group("gloo", rank=self.rank, world_size=SIZE, timeout=limit)
        values = torch.ones(4)
        for _ in range(3):
            dist.all_reduce(values)
        try:
            if self.rank != 2:
                dist.all_reduce(values)
            time.sleep(2 * limit.total_seconds())
        except RuntimeError:
            pass
        data: bytes = torch._C._distributed_c10d._dump_fr_trace()
        return data


def main() -> None:
    prefix, source = sys.argv[1:3]
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    environment = {"env_vars": {"TORCH_FR_DUMP_TEMP_FILE": prefix}}
    trainer: Any = ray.remote(num_cpus=0, runtime_env=environment)(Trainer)
    ranks = [trainer.remote(rank) for rank in range(SIZE)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ended, _ = ray.wait([rank.train.remote(source, port) for rank in ranks], num_returns=SIZE)
    print("ready", len(ended), flush=True)
    time.sleep(900.0)


if __name__ == "__main__":
    main()
