"""An actor whose main thread waits to be stopped, while its consumer thread calls that same actor.

`run` holds the only slot until `stopped` is set, so `next_job` never starts, and neither does `stop`.

Expected: deadlock
Members: Service.run, Service.next_job
Points at: job: str = ray.get(service.next_job.remote())
Next step: Raise max_concurrency of Service to 2 (now 1)
"""

import os
import queue
import threading
from typing import Any

import ray


class Service:
    def __init__(self) -> None:
        self.jobs: queue.Queue[str] = queue.Queue()
        self.stopped = threading.Event()

    def next_job(self) -> str:
        return "sweep"

    def add(self, job: str) -> None:
        self.jobs.put(job)

    def stop(self) -> None:
        self.stopped.set()

    def work(self, service: Any) -> None:
        while not self.stopped.is_set():
            job: str = ray.get(service.next_job.remote())
            if job == "last":
                self.stopped.set()

    def run(self) -> str:
        me = ray.get_runtime_context().current_actor
        threading.Thread(target=self.work, args=(me,), name="consumer", daemon=True).start()
        self.stopped.wait()
        return "stopped"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    service: Any = ray.remote(Service).options(name="service", max_concurrency=1).remote()
    ray.get(service.__ray_ready__.remote())
    end = service.run.remote()
    print("ready", flush=True)
    print(ray.get(end))


if __name__ == "__main__":
    main()
