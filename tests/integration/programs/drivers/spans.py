"""Actors, coroutines and tasks in spans of dstack, and a driver that waits in one."""

import asyncio
import time
from typing import Any

import ray

import dstack


class Engine:
    @dstack.span("generate")
    def generate(self) -> None:
        with dstack.span("prefill"):
            time.sleep(100_000)


class Server:
    @dstack.span("request")
    async def request(self) -> None:
        with dstack.span("decode"):
            await asyncio.Event().wait()


@ray.remote(num_cpus=0)
@dstack.span("load")
def load() -> None:
    for part in ("read", "parse"):
        with dstack.span(part):
            time.sleep(0.2)


ray.init()
ray.get([load.remote() for _ in range(2)])
engine, server = (ray.remote(num_cpus=0)(one).remote() for one in (Engine, Server))
calls: list[Any] = [engine.generate.remote(), server.request.remote(), server.request.remote()]
print("ready", flush=True)
with dstack.span("wait for all"):
    ray.get(calls)
