"""An actor whose main thread waits to be stopped, while its consumer thread waits for a job.

Each thread could end the other's wait, but neither will: a job, or the order to stop, arrives by a call, at any time.
The driver waits to be interrupted.

Expected: running
Members: Service.run
Points at: self.stopped.wait()
"""

import os
import queue
import signal
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
            job = self.jobs.get()
            if job == "last":
                self.stopped.set()

    def run(self) -> str:
        me = ray.get_runtime_context().current_actor
        threading.Thread(target=self.work, args=(me,), name="consumer", daemon=True).start()
        self.stopped.wait()
        return "stopped"


def report(end: Any) -> None:
    print(ray.get(end))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    service: Any = ray.remote(Service).options(name="service", max_concurrency=2).remote()
    ray.get(service.__ray_ready__.remote())
    end = service.run.remote()
    threading.Thread(target=report, args=(end,), daemon=True).start()
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
