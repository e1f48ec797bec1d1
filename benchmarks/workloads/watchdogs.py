"""Pairs of actors that wait for each other until code outside of them ends it: it fails, cancels or kills."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError

from benchmarks.soak.rounds import play_for_ever

SECONDS = 3.0, 12.0
"""How long a pair waits."""


@ray.remote(num_cpus=0, max_concurrency=1)
class Asker:
    """Asks another actor, which asks this one back."""

    async def ask(self, answerer: Any) -> int:
        return int(await answerer.answer.remote(ray.get_runtime_context().current_actor))

    async def answer(self) -> int:
        return 1


@ray.remote(num_cpus=0)
class PatientAsker:
    """Asks likewise, with a task beside it that fails after a while."""

    def ask(self, answerer: Any, seconds: float) -> None:
        ray.get([answerer.answer.remote(ray.get_runtime_context().current_actor), watch.remote(seconds)])

    def answer(self) -> int:
        return 1


@ray.remote(num_cpus=0)
class Answerer:
    def answer(self, asker: Any) -> int:
        return int(ray.get(asker.answer.remote()))


@ray.remote(num_cpus=0, max_retries=-1)
def watch(seconds: float) -> None:
    time.sleep(seconds)
    raise TimeoutError


@ray.remote(num_cpus=0, max_retries=-1)
def supervise(asker: Any, seconds: float) -> None:
    time.sleep(seconds)
    ray.kill(asker)


async def cancel_awaited(question: Any, seconds: float) -> None:
    try:
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(question.future())), seconds)
    except asyncio.TimeoutError:
        ray.cancel(question)


def by_failure(seconds: float) -> list[Any]:
    return [PatientAsker.remote().ask.remote(Answerer.remote(), seconds)]


def by_timer(seconds: float) -> list[Any]:
    question = Asker.remote().ask.remote(Answerer.remote())
    threading.Timer(seconds, ray.cancel, [question]).start()
    return [question]


def by_thread(seconds: float) -> list[Any]:
    question = Asker.remote().ask.remote(Answerer.remote())

    def cancel() -> None:
        time.sleep(seconds)
        ray.cancel(question)

    threading.Thread(target=cancel).start()
    return [question]


def by_coroutine(seconds: float) -> list[Any]:
    question = Asker.remote().ask.remote(Answerer.remote())
    threading.Thread(target=asyncio.run, args=(cancel_awaited(question, seconds),)).start()
    return [question]


def by_supervisor(seconds: float) -> list[Any]:
    asker = Asker.remote()
    return [asker.ask.remote(Answerer.remote()), supervise.remote(asker, seconds)]


WAYS: list[Callable[[float], list[Any]]] = [by_failure, by_timer, by_thread, by_coroutine, by_supervisor]


def end_each(_: None) -> None:
    for question in [question for way in random.sample(WAYS, 3) for question in way(random.uniform(*SECONDS))]:
        with contextlib.suppress(RayError):
            ray.get(question)


def main() -> None:
    ray.init(log_to_driver=False)
    play_for_ever(lambda: None, end_each)


if __name__ == "__main__":
    main()
