"""Actors of every kind of concurrency that wait for calls of their own: three for good, two only for a while."""

import asyncio
import os
import time
from typing import Any

import ray


class Threaded:
    """Has two slots, which two calls take that wait for a third: stuck."""

    def outer(self) -> None:
        me: Any = ray.get_runtime_context().current_actor
        ray.get(me.inner.remote())

    def inner(self) -> None:
        time.sleep(10_000)


class Roomy(Threaded):
    """Has a slot more."""


class Grouped:
    """One slot for each group."""

    @ray.method(concurrency_group="io")
    def stuck(self) -> None:
        me: Any = ray.get_runtime_context().current_actor
        ray.get(me.same_group.remote())

    @ray.method(concurrency_group="io")
    def same_group(self) -> None:
        pass

    @ray.method(concurrency_group="other")
    def waits(self) -> None:
        me: Any = ray.get_runtime_context().current_actor
        ray.get(me.default_group.remote())

    def default_group(self) -> None:
        time.sleep(10_000)


class Blocking:
    """Blocks the loop on which the call would run that it waits for: stuck."""

    async def outer(self) -> None:
        me: Any = ray.get_runtime_context().current_actor
        ray.get(me.inner.remote())

    async def inner(self) -> None:
        await asyncio.sleep(0)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    threaded: Any = ray.remote(max_concurrency=2, num_cpus=0)(Threaded).remote()
    roomy: Any = ray.remote(max_concurrency=4, num_cpus=0)(Roomy).remote()
    grouped: Any = ray.remote(concurrency_groups={"io": 1, "other": 1}, num_cpus=0)(Grouped).remote()
    blocking: Any = ray.remote(num_cpus=0)(Blocking).remote()
    calls = [threaded.outer.remote() for _ in range(2)] + [roomy.outer.remote() for _ in range(2)]
    calls += [grouped.stuck.remote(), grouped.waits.remote(), blocking.outer.remote()]
    print("ready", flush=True)
    ray.get(calls)


if __name__ == "__main__":
    main()
