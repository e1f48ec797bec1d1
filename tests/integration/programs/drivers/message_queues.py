"""A writer of a message queue, two readers, and waits for each other: one deadlock, one slow reader, one idle writer.

The queue is a stand-in for vLLM's, beside this folder, which workers find by ``PYTHONPATH``.
"""

import importlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray

PROGRAMS = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, PROGRAMS)

queues: Any = importlib.import_module("vllm.distributed.device_communicators.shm_broadcast")


class Worker:
    """A reader, which executes what it reads."""

    def __init__(self, rank: int, ranks: list[int], buffer: tuple[int, int, int, str]) -> None:
        self.queue = queues.MessageQueue.create_from_handle(queues.Handle(ranks, buffer), rank)

    def run(self) -> None:
        while True:
            self.execute(self.queue.dequeue())

    def execute(self, step: str) -> None:
        if step == "slow":
            time.sleep(10_000)

    def ping(self) -> str:
        return "pong"


class Engine:
    """A writer, which calls the first of its readers, or is idle."""

    def __init__(self) -> None:
        self.queue = queues.MessageQueue(2)
        self.workers: list[Any] = []

    def start(self) -> list[Any]:
        handle = self.queue.handle
        kind = ray.remote(Worker).options(num_cpus=0)
        self.workers = [kind.remote(rank, handle.local_reader_ranks, handle.buffer_handle) for rank in range(2)]
        return [worker.run.remote() for worker in self.workers]

    def step(self, *messages: str) -> None:
        for message in messages:
            self.queue.enqueue(message)

    def ask(self) -> str:
        answer: str = ray.get(self.workers[0].ping.remote())
        return answer


class Asking(Engine):
    """An engine that waits for a reader."""


class Writing(Engine):
    """An engine that waits for room."""


class Idle(Engine):
    """An engine without requests."""


def main() -> None:
    path = os.pathsep.join(filter(None, (PROGRAMS, os.environ.get("PYTHONPATH", ""))))
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    engines: list[Any] = [ray.remote(kind).options(num_cpus=0).remote() for kind in (Asking, Writing, Idle)]
    loops = [loop for engine in engines for loop in ray.get(engine.start.remote())]
    ray.get([engine.step.remote("first", "second") for engine in engines])
    waits = [engines[0].ask.remote(), engines[1].step.remote(*["slow"] * 6)]
    print("ready", flush=True)
    threading.Event().wait(10_000)
    ray.get([*loops, *waits])


if __name__ == "__main__":
    main()
