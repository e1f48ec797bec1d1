"""An actor that polls another one for the end of a program.

Every call succeeds at once, and no other call reaches that actor. The polled event comes from outside Ray.

Expected: running
Members: driver polls_status_of_program.py, Monitor.run
"""

import os
import subprocess
import sys
import time
from typing import Any

import ray


class Runner:
    def __init__(self) -> None:
        self.program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"])

    def is_done(self) -> bool:
        return self.program.poll() is not None


class Monitor:
    def run(self, runner: Any) -> str:
        while not ray.get(runner.is_done.remote()):
            time.sleep(0.2)
        return "done"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    runner: Any = ray.remote(Runner).options(name="runner", num_cpus=0).remote()
    monitor: Any = ray.remote(Monitor).options(name="monitor", num_cpus=2).remote()
    end = monitor.run.remote(runner)
    print("ready", flush=True)
    print(ray.get(end))


if __name__ == "__main__":
    main()
