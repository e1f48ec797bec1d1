"""A loop with two worker groups of verl, in which every rank asks one register before it generates.

The driver dispatches a batch of prompts to two rollout ranks, and the futures of their responses to two trainer ranks,
as verl does: the data goes from rank to rank, not through the driver. Each rollout rank first asks the register for the
version of the weights. The register answers one call at a time, and reads its store anew for each.

Expected: running
Members: Rollout.generate
Points at: version: int = ray.get(self.store.version.remote(self.rank))
Needs: verl
"""

import os
import time
from typing import Any

import ray
import torch
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

RANKS = 2
PROMPTS = 64
TOKENS = 1024
"""The tokens of a response, of 8 bytes each: 256 KiB for each rank."""
STORE_S = 1.0
KEPT_STEPS = 3
"""The driver keeps the responses of so many steps."""


class Register:
    def version(self, rank: int) -> int:
        time.sleep(STORE_S)
        return 1


class Rollout(Worker):  # type: ignore[misc]  # verl has no types
    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def generate(self, prompts: Any) -> Any:
        version: int = ray.get(self.store.version.remote(self.rank))
        responses = torch.full((len(prompts), TOKENS), version)
        return DataProto.from_dict({"responses": responses})


class Trainer(Worker):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def update(self, responses: Any) -> Any:
        losses = responses.batch["responses"].float().mean(dim=1)
        return DataProto.from_dict({"losses": losses})


def group_of(pool: Any, worker: type, *arguments: Any) -> Any:
    return RayWorkerGroup(pool, RayClassWithInitArgs(ray.remote(num_cpus=0)(worker), *arguments))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    store: Any = ray.remote(num_cpus=0)(Register).options(name="register").remote()
    pool = RayResourcePool(process_on_nodes=[RANKS], use_gpu=False, max_colocate_count=1)
    rollouts, trainers = group_of(pool, Rollout, store), group_of(pool, Trainer)
    prompts = DataProto.from_dict({"prompts": torch.zeros((PROMPTS, 8))})
    kept: list[Any] = []
    for step in range(1, 1_000_000):
        began = time.monotonic()
        responses = rollouts.generate(prompts)
        kept = [*kept, responses][-KEPT_STEPS:]
        losses = trainers.update(responses).get()
        loss = float(losses.batch["losses"].mean())
        print(f"step {step} took {time.monotonic() - began:.1f} s, loss {loss}", flush=True)
        if step == KEPT_STEPS:
            print("ready", flush=True)


if __name__ == "__main__":
    main()
