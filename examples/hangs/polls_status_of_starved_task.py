"""An actor that polls another one for the end of a task, which needs the CPUs of the polling actor.

Every call succeeds at once. The task would report its end, but it never starts.

Expected: deadlock
Members: Monitor.run, work
Next step: Set num_cpus=0 for actor Monitor
"""

import os
import time
from typing import Any

import ray


class Runner:
    def __init__(self) -> None:
        self.done = False

    def finish(self) -> None:
        self.done = True

    def is_done(self) -> bool:
        return self.done


class Monitor:
    def run(self, runner: Any) -> str:
        while not ray.get(runner.is_done.remote()):
            time.sleep(0.2)
        return "done"


@ray.remote(num_cpus=1)
def work(runner: Any) -> None:
    ray.get(runner.finish.remote())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    runner: Any = ray.remote(Runner).options(name="runner", num_cpus=0).remote()
    monitor: Any = ray.remote(Monitor).options(name="monitor", num_cpus=2).remote()
    ray.get(monitor.__ray_ready__.remote())
    work.remote(runner)
    end = monitor.run.remote(runner)
    print("ready", flush=True)
    print(ray.get(end))


if __name__ == "__main__":
    main()
