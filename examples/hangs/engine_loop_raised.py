"""The loop of an engine has ended with an error, so no request gets its answer.

The requests await futures that the loop sets. It takes one of an empty prompt, and divides by its length. The actor
still refers to the task of the loop, but nothing awaits it, so its exception is raised nowhere.

Expected: stalled
Members: Engine.answer, driver engine_loop_raised.py
Points at: return await request.answer
Next step: Correct the ZeroDivisionError at engine_loop_raised.py. Where asyncio task Engine.serve ends, set
"""

import asyncio
import os
from typing import Any

import ray


class Request:
    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.answer: asyncio.Future[float] = asyncio.get_running_loop().create_future()


class Engine:
    def __init__(self) -> None:
        self.requests: asyncio.Queue[Request] = asyncio.Queue()
        self.loop: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        while True:
            request = await self.requests.get()
            request.answer.set_result(self.score(request))

    def score(self, request: Request) -> float:
        return request.prompt.count(" ") / len(request.prompt)

    async def answer(self, prompt: str) -> float:
        self.loop = self.loop or asyncio.create_task(self.serve())
        request = Request(prompt)
        await self.requests.put(request)
        return await request.answer


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    engine: Any = ray.remote(Engine).options(name="engine").remote()
    print(ray.get(engine.answer.remote("a short prompt")))
    answers = [engine.answer.remote(prompt) for prompt in ("", "a long prompt")]
    print("ready", flush=True)
    print(ray.get(answers))


if __name__ == "__main__":
    main()
