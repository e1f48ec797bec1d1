"""Flags, events and semaphores that timers and signals set, while calls that would set them queue behind the waits."""

import asyncio
import random
import signal
import subprocess
import threading
from typing import Any

import ray

from benchmarks.soak.rounds import play_for_ever

SECONDS = 3.0, 10.0
"""How long a wait takes."""


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Poller:
    """Polls for an answer of an actor that asks it back, until a timer sets a flag."""

    def poll(self, answerer: Any, seconds: float) -> int:
        stop = threading.Event()
        threading.Timer(seconds, stop.set).start()
        answer = answerer.answer.remote(ray.get_runtime_context().current_actor)
        while not stop.is_set():
            if ray.wait([answer], timeout=0.3)[0]:
                break
        return 1

    def answer(self) -> int:
        return 1


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Answerer:
    def answer(self, poller: Any) -> int:
        return int(ray.get(poller.answer.remote()))

    def ping(self) -> int:
        return 1


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Sleeper:
    """Sleeps until a signal wakes it up; the calls that could do it otherwise come later."""

    def __init__(self) -> None:
        self.awake = threading.Event()
        signal.signal(signal.SIGUSR2, lambda *_: self.awake.set())

    def sleep(self, seconds: float) -> int:
        self.awake.clear()
        with subprocess.Popen(["sh", "-c", f"sleep {seconds:.1f}; kill -USR2 $PPID"]):
            self.awake.wait()
        return 1

    def wake_up(self) -> int:
        self.awake.set()
        return 1


@ray.remote(num_cpus=0, max_concurrency=2, max_restarts=-1, max_task_retries=-1)
class Bucket:
    """Gives one token in a while; two callers that wait for one leave no room for others."""

    def __init__(self) -> None:
        self.tokens = asyncio.Semaphore(1)
        self.is_full = asyncio.Event()

    async def take(self, seconds: float) -> int:
        await self.tokens.acquire()
        asyncio.get_running_loop().call_later(seconds, self.tokens.release)
        return 1

    async def wait(self, seconds: float) -> int:
        asyncio.get_running_loop().call_later(seconds, self.is_full.set)
        await self.is_full.wait()
        self.is_full.clear()
        return 1

    async def fill(self) -> int:
        self.is_full.set()
        return 1


def team() -> tuple[Any, ...]:
    return Poller.remote(), Answerer.remote(), Sleeper.remote(), Bucket.remote(), Bucket.remote()


def wait_for_all(actors: tuple[Any, ...]) -> None:
    poller, answerer, sleeper, bucket, other = actors
    seconds = [random.uniform(*SECONDS) for _ in range(4)]
    calls = [poller.poll.remote(answerer, seconds[0]), sleeper.sleep.remote(seconds[1]), sleeper.wake_up.remote()]
    calls += [bucket.take.remote(seconds[2] / 3) for _ in range(4)]
    calls += [other.wait.remote(seconds[3]), other.wait.remote(seconds[3]), other.fill.remote()]
    assert sum(ray.get(calls)) == len(calls)
    ray.get(answerer.ping.remote())


def main() -> None:
    ray.init()
    play_for_ever(team, wait_for_all)


if __name__ == "__main__":
    main()
