"""A loader makes objects for a trainer and for the driver, while a folder has the file ``begin`` but not ``end``.

Printed at the end, as JSON: how many objects each of them got, how many bytes at least, and the calls of each actor.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import ray

BATCH_BYTES, REPORT_BYTES = 8_000_000, 3_000_000
WORK_S = 0.3


class Loader:
    def load(self, size: int) -> bytes:
        time.sleep(WORK_S)
        return bytes(size)


class Trainer:
    def step(self, batch: bytes) -> int:
        time.sleep(WORK_S)
        return len(batch)


ray.init()
remote: Any = ray.remote(num_cpus=0)
loader, trainer = remote(Loader).remote(), remote(Trainer).remote()
ray.get([loader.load.remote(1), trainer.step.remote(b"")])
folder, rounds = Path(sys.argv[1]), 0
print("ready", flush=True)
while not (folder / "begin").exists():
    time.sleep(0.05)
while not (folder / "end").exists():
    batch = loader.load.remote(BATCH_BYTES)
    ray.get(trainer.step.remote(batch))
    report = loader.load.remote(REPORT_BYTES)
    ray.get(report)
    rounds += 1
sizes = {"Trainer": BATCH_BYTES, "driver": REPORT_BYTES}
spent = {"objects": rounds, "sizes": sizes, "calls": {"Loader": 2 * rounds, "Trainer": rounds}}
print("spent", json.dumps(spent), flush=True)
while True:
    time.sleep(1)
