"""A trainer that asks a buffer for its size all the time, so rollout workers wait to add to it.

A loop in the manner of AReaL: rollout workers add trajectories to a buffer at their own pace, and the trainer takes a
batch as soon as there are enough. It asks for that many times a second. The buffer sorts out stale trajectories for
every question, and answers one call at a time. With the argument `fixed` the trainer makes one call for each batch,
which the buffer answers when there are enough.

Expected: running
Members: driver rollout_polling.py
Ends in: Trainer.fit, 1 directly, 1 in all
"""

import asyncio
import os
import sys
import time
from typing import Any

import ray

WORKERS = 2
BATCH = 4
FIRST_BATCHES = 5
SORT_S = 0.004
"""The time to sort out stale trajectories."""
POLL_S = 0.001


class Buffer:
    def __init__(self) -> None:
        self.trajectories: list[str] = []

    def add(self, trajectory: str) -> None:
        self.trajectories.append(trajectory)

    def size(self) -> int:
        time.sleep(SORT_S)
        return len(self.trajectories)

    def take(self, number: int) -> list[str]:
        taken, self.trajectories = self.trajectories[:number], self.trajectories[number:]
        return taken


class WaitingBuffer:
    """A buffer that answers a call when there are enough trajectories."""

    def __init__(self) -> None:
        self.trajectories: asyncio.Queue[str] = asyncio.Queue()

    async def add(self, trajectory: str) -> None:
        await self.trajectories.put(trajectory)

    async def take(self, number: int) -> list[str]:
        return [await self.trajectories.get() for _ in range(number)]


class Engine:
    def generate(self, prompt: str) -> str:
        time.sleep(0.4)
        return f"{prompt}: a trajectory"


class Rollout:
    def run(self, engine: Any, buffer: Any) -> None:
        for number in range(1_000_000):
            trajectory = ray.get(engine.generate.remote(f"prompt {number}"))
            ray.get(buffer.add.remote(trajectory))


class Trainer:
    def fit(self, buffer: Any, polls: bool, batches: int) -> None:
        for _ in range(batches):
            while polls and ray.get(buffer.size.remote()) < BATCH:
                time.sleep(POLL_S)
            batch = ray.get(buffer.take.remote(BATCH))
            self.update(batch)

    def update(self, batch: list[str]) -> None:
        time.sleep(0.1)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    polls = sys.argv[1:] != ["fixed"]
    actor = ray.remote(num_cpus=0)
    buffer: Any = actor(Buffer if polls else WaitingBuffer).options(name="buffer").remote()
    trainer: Any = actor(Trainer).options(name="trainer").remote()
    engine: Any = actor(Engine).options(max_concurrency=WORKERS).remote()
    rollouts: list[Any] = [actor(Rollout).remote() for _ in range(WORKERS)]
    for rollout in rollouts:
        rollout.run.remote(engine, buffer)
    began = time.monotonic()
    ray.get(trainer.fit.remote(buffer, polls, FIRST_BATCHES))
    print(f"a batch takes {(time.monotonic() - began) / FIRST_BATCHES:.1f} s", flush=True)
    fitted = trainer.fit.remote(buffer, polls, 1_000_000)
    print("ready", flush=True)
    ray.get(fitted)


if __name__ == "__main__":
    main()
