"""Ray Serve: deployments with one request at a time that request each other, until each request's timeout."""

import asyncio
import contextlib
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from benchmarks.soak.rounds import play_for_ever

APP = "clerks"
SECONDS = 2.0, 8.0
"""Timeouts of requests."""


@serve.deployment(max_ongoing_requests=1, ray_actor_options={"num_cpus": 0})
class Back:
    async def __call__(self, seconds: float) -> float:
        front: DeploymentHandle[float] = serve.get_deployment_handle("Front", APP)
        return float(await front.answer.remote(seconds)) if seconds else 0.0


@serve.deployment(max_ongoing_requests=1, ray_actor_options={"num_cpus": 0})
class Front:
    def __init__(self, back: DeploymentHandle[float]) -> None:
        self.back = back

    async def __call__(self, seconds: float) -> float:
        with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
            if random.random() < 0.5:
                return float(await asyncio.wait_for(self.back.remote(seconds), seconds))
            with anyio.fail_after(seconds):
                return float(await self.back.remote(seconds))
        return seconds

    async def answer(self, seconds: float) -> float:
        return seconds


def request_all(front: DeploymentHandle[float]) -> None:
    with ThreadPoolExecutor(2) as pool:
        requests = [random.uniform(*SECONDS) for _ in range(2)]
        assert list(pool.map(lambda seconds: front.remote(seconds).result(), requests)) == requests
    assert front.remote(0.0).result() == 0.0


def clerks() -> Any:
    return serve.run(Front.bind(Back.bind()), name=APP, route_prefix="/clerks")


def main() -> None:
    ray.init(log_to_driver=False)
    play_for_ever(clerks, request_all)


if __name__ == "__main__":
    main()
