"""Actors with one slot each whose calls form a ring, as the JSON in the first argument says.

``members`` is a list of [whether it is async, how it waits for the next one]. ``driver`` is what the driver does: it
``waits``, ``cancels`` the first call by a timer, or ``has one killed`` by a supervisor. What ends a wait does so after
``seconds``. Prints ``ready`` once each member waits and the supervisor has begun,
and ``done`` once the ring has ended.
"""

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from typing import Any

import anyio
import ray

LONG_S = 900.0


@ray.remote(num_cpus=0)
def fails(seconds: float) -> None:
    time.sleep(seconds)
    raise TimeoutError


@ray.remote(num_cpus=0)
def succeeds() -> None:
    pass


class Threaded:
    def pass_on(self, folder: str, seconds: float, ways: list[str], ring: list[Any]) -> str:
        following = self.call_next(folder, seconds, ways, ring)
        match ways[0]:
            case "get_with_timeout":
                ray.get(following, timeout=seconds)
            case "get_with_failing_task":
                ray.get([following, fails.remote(seconds)])
            case "get_with_ended_task":
                ray.get([following, succeeds.remote()])
            case _:
                ray.get(following)
        return "passed on"

    def call_next(self, folder: str, seconds: float, ways: list[str], ring: list[Any]) -> Any:
        with open(f"{folder}/{len(ways)}.began", "w"):
            pass
        if len(ways) == 1:
            return ring[0].name.remote()
        return ring[len(ring) - len(ways) + 1].pass_on.remote(folder, seconds, ways[1:], ring)

    def name(self) -> str:
        return "threaded"


class Asynchronous:
    async def pass_on(self, folder: str, seconds: float, ways: list[str], ring: list[Any]) -> str:
        following = Threaded.call_next(self, folder, seconds, ways, ring)  # type: ignore[arg-type]
        try:
            await getattr(self, ways[0])(following, seconds)
        except (TimeoutError, asyncio.TimeoutError, asyncio.CancelledError):
            return "gave up"
        return "passed on"

    async def plain(self, following: Any, seconds: float) -> None:
        await following

    async def move_on_after(self, following: Any, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await following

    async def fail_after(self, following: Any, seconds: float) -> None:
        with anyio.fail_after(seconds):
            await following

    async def wait_for(self, following: Any, seconds: float) -> None:
        await asyncio.wait_for(self.ask(following), seconds)

    async def call_later(self, following: Any, seconds: float) -> None:
        task = asyncio.ensure_future(self.ask(following))
        asyncio.get_running_loop().call_later(seconds, task.cancel)
        await task

    async def call_later_of_note(self, following: Any, seconds: float) -> None:
        asyncio.get_running_loop().call_later(LONG_S, self.note)
        await following

    async def watchdog(self, following: Any, seconds: float) -> None:
        task = asyncio.ensure_future(self.ask(following))
        self.watcher = asyncio.ensure_future(self.watch(task, seconds))
        await task

    async def gather_with_failing_branch(self, following: Any, seconds: float) -> None:
        await asyncio.gather(self.ask(following), self.alarm(seconds))

    async def gather_with_calm_branch(self, following: Any, seconds: float) -> None:
        await asyncio.gather(self.ask(following), self.rest())

    async def ask(self, following: Any) -> Any:
        return await following

    async def watch(self, task: Any, seconds: float) -> None:
        await asyncio.sleep(seconds)
        task.cancel()

    async def alarm(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        raise TimeoutError

    async def rest(self) -> None:
        await asyncio.sleep(0.1)

    def note(self) -> None:
        print("still there")

    async def name(self) -> str:
        return "asynchronous"


@ray.remote(num_cpus=0)
class Supervisor:
    def __init__(self, watched: Any) -> None:
        self.watched = watched

    def watch(self, folder: str, seconds: float) -> None:
        with open(f"{folder}/supervisor.began", "w"):
            pass
        time.sleep(seconds)
        ray.kill(self.watched)


def main() -> None:
    world = json.loads(sys.argv[1])
    ray.init(os.environ["RAY_ADDRESS"])
    kinds = [type(f"Member{n}", (Asynchronous if one[0] else Threaded,), {}) for n, one in enumerate(world["members"])]
    ring: list[Any] = [ray.remote(kind).options(num_cpus=0, max_concurrency=1).remote() for kind in kinds]
    ray.get([member.name.remote() for member in ring])
    with tempfile.TemporaryDirectory() as folder:
        seconds, ways = world["seconds"], [way for _, way in world["members"]]
        result = ring[0].pass_on.remote(folder, seconds, ways, ring)
        if world["driver"] == "cancels":
            timer = threading.Timer(seconds, ray.cancel, [result])
            timer.daemon = True
            timer.start()
        elif world["driver"] == "has one killed":
            supervisor: Any = Supervisor.remote(ring[-1])  # type: ignore[attr-defined]
            supervisor.watch.remote(folder, seconds)
        while len(os.listdir(folder)) < len(ring) + (world["driver"] == "has one killed"):
            time.sleep(0.05)
        print("ready", flush=True)
        try:
            ray.get(result)
        except ray.exceptions.RayError as error:
            print(type(error).__name__, flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
