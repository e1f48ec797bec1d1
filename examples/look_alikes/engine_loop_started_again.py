"""The loop of an engine has ended with an error, and another one serves the requests.

The actor still refers to the first task, and the request that it held is served by the second one, which asks a slow
model.

Expected: running
Members: driver engine_loop_started_again.py
Points at: time.sleep(seconds)
"""

import asyncio
import os
import time
from typing import Any

import ray


class Model:
    def score(self, seconds: float) -> float:
        time.sleep(seconds)
        return 1.0


class Engine:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.loops: list[asyncio.Task[None]] = []

    async def serve(self, answer: "asyncio.Future[float]", seconds: float | None) -> None:
        if seconds is None:
            raise ValueError("the model is not loaded")
        answer.set_result(await self.model.score.remote(seconds))

    async def answer(self) -> float:
        answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        for seconds in (None, 900.0):
            self.loops.append(asyncio.create_task(self.serve(answer, seconds)))
        return await answer


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    model: Any = ray.remote(Model).options(name="model").remote()
    engine: Any = ray.remote(Engine).options(name="engine").remote(model)
    ray.get(engine.__ray_ready__.remote())
    answer = engine.answer.remote()
    print("ready", flush=True)
    print(ray.get(answer))


if __name__ == "__main__":
    main()
