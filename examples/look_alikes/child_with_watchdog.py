"""A task waits for a program that it has started, and does not read what the program prints.

The pipe has room for 64 KiB. Then the program waits until the task reads, but a watchdog ends it after a time.

Expected: running
Members: Trainer.export
Points at: return exporter.wait()
"""

import os
import subprocess
import sys
from typing import Any

import ray

EXPORT = """
import os, threading
threading.Timer(900.0, os._exit, (1,)).start()
print("line\\n" * 100_000)
"""


class Trainer:
    def export(self, program: str) -> int:
        exporter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        return exporter.wait()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    trainer: Any = ray.remote(Trainer).remote()
    ray.get(trainer.__ray_ready__.remote())
    code = trainer.export.remote(EXPORT)
    print("ready", flush=True)
    print(f"exported: {ray.get(code)}", flush=True)


if __name__ == "__main__":
    main()
