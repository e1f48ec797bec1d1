"""Pairs of async actors that wait for each other until a timer ends it: cancel scopes, timeouts, branches that fail."""

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import ray
from ray.exceptions import RayError

from benchmarks.soak.rounds import play_for_ever

PAIRS = 3
SECONDS = 3.0, 12.0
"""How long a pair waits."""


@ray.remote(num_cpus=0, max_concurrency=1, max_restarts=-1, max_task_retries=-1)
class Asker:
    """Asks another actor, which asks this one back, so no answer comes before the asker gives up."""

    async def ask(self, answerer: Any, way: str, seconds: float) -> int:
        question = answerer.answer.remote(ray.get_runtime_context().current_actor)
        try:
            await WAYS[way](question, seconds)
        except RayError:
            raise
        except (Exception, asyncio.CancelledError):  # the way in which it gives up, as TimeoutError or a group of it
            return 1
        return 1

    async def answer(self) -> int:
        return 1


@ray.remote(num_cpus=0, max_concurrency=1, max_restarts=-1, max_task_retries=-1)
class Answerer:
    async def answer(self, asker: Any) -> int:
        return int(await asker.answer.remote())

    async def ping(self) -> int:
        return 1


async def answer_to(question: Any) -> Any:
    return await question


async def bark(seconds: float) -> None:
    await asyncio.sleep(seconds)
    raise TimeoutError


async def move_on(question: Any, seconds: float) -> None:
    with anyio.move_on_after(seconds):
        await question


async def fail(question: Any, seconds: float) -> None:
    with anyio.fail_after(seconds):
        await question


async def wait_for(question: Any, seconds: float) -> None:
    await asyncio.wait_for(answer_to(question), seconds)


async def cancel_later(question: Any, seconds: float) -> None:
    task = asyncio.create_task(answer_to(question))
    asyncio.get_running_loop().call_later(seconds, task.cancel)
    await task


async def gather(question: Any, seconds: float) -> None:
    await asyncio.gather(answer_to(question), bark(seconds))


async def first_exception(question: Any, seconds: float) -> None:
    tasks = [asyncio.create_task(answer_to(question)), asyncio.create_task(bark(seconds))]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    tasks[0].cancel()


async def anyio_group(question: Any, seconds: float) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(answer_to, question)
        await anyio.sleep(seconds)
        group.cancel_scope.cancel()


async def failing_group(question: Any, seconds: float) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(answer_to, question)
        group.start_soon(bark, seconds)


WAYS: dict[str, Callable[[Any, float], Awaitable[None]]] = {
    way.__name__: way
    for way in (move_on, fail, wait_for, cancel_later, gather, first_exception, anyio_group, failing_group)
}

if sys.version_info >= (3, 11):

    async def time_out(question: Any, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await question

    async def asyncio_group(question: Any, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(answer_to(question))
            group.create_task(bark(seconds))

    WAYS |= {"time_out": time_out, "asyncio_group": asyncio_group}


def ask_each_other(pairs: list[tuple[Any, Any]]) -> None:
    ways = random.sample(sorted(WAYS), len(pairs))
    asked = [
        asker.ask.remote(answerer, way, random.uniform(*SECONDS))
        for (asker, answerer), way in zip(pairs, ways, strict=True)
    ]
    assert sum(ray.get(asked)) == len(pairs)
    ray.get([answerer.ping.remote() for _, answerer in pairs])


def main() -> None:
    ray.init()
    play_for_ever(lambda: [(Asker.remote(), Answerer.remote()) for _ in range(PAIRS)], ask_each_other)


if __name__ == "__main__":
    main()
