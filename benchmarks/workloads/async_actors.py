"""Async actors that await each other in both directions, with slots to spare, and a signal that opens and closes."""

import asyncio
import random
from typing import Any

import ray

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0, max_concurrency=20, max_restarts=-1, max_task_retries=-1)
class Player:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.bell = asyncio.Event()

    async def play(self, other: Any, rounds: int) -> int:
        if rounds == 0:
            return 0
        async with self.turn:
            await asyncio.sleep(random.uniform(0, 0.2))
        return 1 + int(await other.play.remote(None if rounds == 1 else other, rounds - 1)) if other else 1

    async def wait_for_bell(self) -> None:
        await self.bell.wait()

    async def ring(self) -> None:
        self.bell.set()
        self.bell = asyncio.Event()

    async def all_of(self, others: list[Any]) -> int:
        return sum(await asyncio.gather(*(other.play.remote(other, 2) for other in others)))


def gather() -> list[Any]:
    players = [Player.remote() for _ in range(3)]
    ray.get([player.ring.remote() for player in players])
    return players


def play_and_ring(players: list[Any]) -> None:
    sleepers = [player.wait_for_bell.remote() for player in players]
    ray.get([player.all_of.remote(players) for player in players])
    while sleepers:
        ray.get([player.ring.remote() for player in players])
        sleepers = ray.wait(sleepers, num_returns=len(sleepers), timeout=0.05)[1]


def main() -> None:
    ray.init()
    play_for_ever(gather, play_and_ring)


if __name__ == "__main__":
    main()
