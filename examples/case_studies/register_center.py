"""Rollout workers that ask a central register in every step, and wait there for each other.

A loop in the manner of veRL: the driver calls four rollout workers, and a trainer takes their batches. Each worker asks
the register for its peers before it generates. The register answers one call at a time, and reads its store anew for
each. So the workers wait in its queue, and a step takes two seconds longer than its own work. With the argument `fixed`
each worker keeps the answer.

Expected: running
Members: Rollout.generate
Points at: self.known = ray.get(self.register.peers.remote(self.rank))
"""

import os
import sys
import time
from typing import Any

import ray

WORKERS = 4
STORE_S = 0.5
"""The time to read the store of the register once."""
BATCH_BYTES = 256 * 1024
WEIGHTS_BYTES = 1024 * 1024
CACHE_BYTES = 512 * 1024
KEPT_STEPS = 3
"""The driver keeps the batches of so many steps."""


class Register:
    def __init__(self) -> None:
        self.addresses: dict[int, str] = {}

    def join(self, rank: int) -> None:
        self.addresses[rank] = ray.util.get_node_ip_address()

    def peers(self, rank: int) -> dict[int, str]:
        time.sleep(STORE_S)
        return {other: address for other, address in self.addresses.items() if other != rank}


class Rollout:
    def __init__(self, register: Any, rank: int, asks_once: bool) -> None:
        self.register = register
        self.rank = rank
        self.asks_once = asks_once
        self.known: dict[int, str] = {}
        self.cache = ray.put(bytes(CACHE_BYTES))

    def generate(self, weights: bytes) -> bytes:
        if not self.known or not self.asks_once:
            self.known = ray.get(self.register.peers.remote(self.rank))
        time.sleep(0.1)
        return bytes(BATCH_BYTES)


class Trainer:
    def update(self, *batches: bytes) -> bytes:
        time.sleep(0.1)
        return bytes(WEIGHTS_BYTES)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    actor = ray.remote(num_cpus=0)
    register: Any = actor(Register).options(name="register").remote()
    asks_once = sys.argv[1:] == ["fixed"]
    rollouts: list[Any] = [actor(Rollout).remote(register, rank, asks_once) for rank in range(WORKERS)]
    trainer: Any = actor(Trainer).options(name="trainer").remote()
    ray.get([register.join.remote(rank) for rank in range(WORKERS)])
    weights = ray.put(bytes(WEIGHTS_BYTES))
    kept: list[Any] = []
    for step in range(1, 1_000_000):
        began = time.monotonic()
        batches = [rollout.generate.remote(weights) for rollout in rollouts]
        weights = trainer.update.remote(*batches)
        ray.wait([weights])
        kept = [*kept, batches][-KEPT_STEPS:]
        print(f"step {step} took {time.monotonic() - began:.1f} s", flush=True)
        if step == KEPT_STEPS:
            print("ready", flush=True)


if __name__ == "__main__":
    main()
