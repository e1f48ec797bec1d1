"""A training pipeline whose calls have all that a call graph shows, and which hangs at the end.

The driver puts an object, and prepares shards with nested tasks, of which one fails. It polls a store at high frequency
while rollouts fill it. The trainer calls the store from its own method. Then the trainer and a rollout worker wait for
each other, while the driver waits for the trainer, and a second call is queued behind the trainer's.
"""

from __future__ import annotations

import time
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

SHARDS, ROLLOUTS, POLLS = 6, 3, 60
BYTES = 3_000_000
POLL_S = 0.01


@ray.remote(num_cpus=0)
def tokenize(part: int) -> int:
    return part


@ray.remote(num_cpus=0, scheduling_strategy="SPREAD", max_retries=0)
def prepare(shard: int) -> bytes:
    ray.get([tokenize.remote(part) for part in range(2)])
    if shard == 1:
        raise ValueError("shard 1 has no header")
    return bytes(BYTES)


class Store:
    def __init__(self) -> None:
        self.items: list[int] = []

    def put(self, item: int) -> None:
        self.items.append(item)

    def size(self) -> int:
        return len(self.items)


class Rollout:
    async def generate(self, store: Any, item: int) -> int:
        await store.put.remote(item)
        return item

    async def pause(self, trainer: Any) -> int:
        return int(await trainer.version.remote())


class Trainer:
    def __init__(self, store: Any) -> None:
        self.store = store

    def step(self) -> int:
        time.sleep(0.05)
        return int(ray.get(self.store.size.remote()))

    def sync(self, rollout: Any, me: Any) -> int:
        return int(ray.get(rollout.pause.remote(me)))

    def version(self) -> int:
        return 1


def main() -> None:
    ray.init()
    settings = ray.put(bytes(BYTES))
    remote: Any = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")
    store = remote(Store).remote()
    trainer = remote(Trainer).remote(store)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    places = [NodeAffinitySchedulingStrategy(nodes[number % len(nodes)], soft=False) for number in range(ROLLOUTS)]
    rollouts = [remote(Rollout).options(scheduling_strategy=place).remote() for place in places]
    shards = [prepare.remote(shard) for shard in range(SHARDS)]
    ray.wait(shards, num_returns=SHARDS, timeout=60, fetch_local=False)
    items = [rollout.generate.remote(store, number) for number, rollout in enumerate(rollouts * 4)]
    for _ in range(POLLS):
        ray.get(store.size.remote())
        time.sleep(POLL_S)
    ray.get(items)
    for _ in range(5):
        ray.get(trainer.step.remote())
    synced = trainer.sync.remote(rollouts[0], trainer)
    print("ready", flush=True)
    ray.get([synced, trainer.step.remote()])
    del shards, settings


if __name__ == "__main__":
    main()
