"""Items through pipelines whose links are known by name: known_pipelines.py KIND ITEMS.

A call is named STEP/ITEM. Each kind submits, orders or passes on its items in another way. Prints `ready` at the end,
then waits.
"""

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import ray

VALUE = b"x" * 300_000


@ray.remote
def work(value: Any, lasts_s: float) -> Any:
    time.sleep(lasts_s)
    return value


@ray.remote
def join(value: Any, other: Any, lasts_s: float) -> Any:
    time.sleep(lasts_s)
    return value


@ray.remote(num_cpus=0)
class Stage:
    def work(self, value: Any, lasts_s: float) -> Any:
        time.sleep(lasts_s)
        return value


@ray.remote(num_cpus=0)
class AsyncStage:
    async def work(self, value: Any, lasts_s: float) -> Any:
        await asyncio.sleep(lasts_s)
        return value


@ray.remote(num_cpus=0)
class Maker:
    def make(self, item: int, lasts_s: float) -> list[Any]:
        return [work.options(name=f"made/{item}").remote(item, lasts_s)]


class Pipelines:
    """Submits items; ``refs`` are the results."""

    def __init__(self, items: int, lasts: Callable[[], float]) -> None:
        self.items = range(items)
        self.lasts = lasts
        self.refs: list[Any] = []

    def step(self, function: Any, step: str, item: int, *values: Any) -> Any:
        return function.options(name=f"{step}/{item}").remote(*values, self.lasts())

    def item(self, item: int, functions: Any = (work, work, work), value: Any = 0) -> None:
        for step, function in zip("abc", functions, strict=True):
            value = self.step(function, step, item, value)
        self.refs.append(value)

    def tasks(self) -> None:
        for item in self.items:
            self.item(item)

    def large(self) -> None:
        for item in self.items:
            self.item(item, value=VALUE)

    def threads(self) -> None:
        threads = [threading.Thread(target=self.item, args=[item]) for item in self.items]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def actors(self, kind: Any = Stage, each: int = 1) -> None:
        stages: list[list[Any]] = [[kind.remote() for _ in range(each)] for _ in range(3)]
        for item in self.items:
            self.item(item, [stage[item % each].work for stage in stages])

    def pools(self) -> None:
        self.actors(each=2)

    def coroutines(self) -> None:
        self.actors(AsyncStage)

    def mixed(self) -> None:
        stage: Any = Stage.remote()
        for item in self.items:
            self.item(item, (work, stage.work, work))

    def noise(self) -> None:
        for item in self.items:
            self.item(item)
            self.refs.append(self.step(work, "noise", item, 0))

    def joins(self) -> None:
        for item in self.items:
            other = self.step(work, "other", item, 0)
            value = self.step(work, "b", item, self.step(work, "a", item, 0))
            self.refs.append(self.step(join, "join", item, value, other))

    def shared(self) -> None:
        value = work.options(name="load/0").remote(0, 0.5)
        for item in self.items:
            self.refs.append(self.step(work, "c", item, self.step(work, "b", item, value)))

    def borrowed(self) -> None:
        maker: Any = Maker.remote()
        for item in self.items:
            (value,) = ray.get(self.step(maker.make, "make", item, item))
            self.refs.append(self.step(work, "c", item, self.step(work, "b", item, value)))

    def fetched(self) -> None:
        """Values are fetched and passed on, so no call has a ref."""
        pending = {self.step(work, "first", item, 0): ("first", item) for item in self.items}
        while pending:
            (ref,), _ = ray.wait(list(pending))
            step, item = pending.pop(ref)
            if step == "first":
                pending[self.step(work, "second", item, ray.get(ref))] = ("second", item)


def main() -> None:
    kind, items = sys.argv[1], int(sys.argv[2])
    durations = random.Random(1)
    lasts: dict[str, Callable[[], float]] = {"equal": lambda: 0.05, "none": lambda: 0.0}
    ray.init(os.environ["RAY_ADDRESS"], include_dashboard=False, log_to_driver=False)
    way, _, lasting = kind.partition("-")
    pipelines = Pipelines(items, lasts.get(lasting, lambda: durations.uniform(0.005, 0.08)))
    getattr(pipelines, way)()
    ray.get(pipelines.refs)
    print("ready", flush=True)
    time.sleep(900.0)


if __name__ == "__main__":
    main()
