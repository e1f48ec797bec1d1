"""A driver that asks for resources in one of many ways: resources.py WAY.

For a cluster of two nodes with 2 CPU and 1 GPU each.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as In


@ray.remote
def compute(seconds: float = 10_000.0) -> int:
    time.sleep(seconds)
    return 1


@ray.remote(num_gpus=1)
def train(depth: int, others: list[Any] | None = None) -> int:
    """Holds a GPU while it waits for a task that needs one; begins to wait when the others hold theirs."""
    if others is not None:
        ray.get(others[0].meet.remote())
    if depth:
        ray.get(train.remote(depth - 1))
    return 1


@ray.remote
def outer(cpus: float) -> int:
    return int(ray.get(compute.options(num_cpus=cpus).remote()))


class Keeper:
    """Holds what it was created with."""

    def ask(self, group: Any) -> int:
        """Waits for a task in its own bundle."""
        inside = In(placement_group=group, placement_group_bundle_index=0)
        return int(ray.get(compute.options(num_cpus=1, scheduling_strategy=inside).remote(0.0)))

    def ping(self) -> int:
        return 1


class Gate:
    """Opens when two have come."""

    def __init__(self) -> None:
        self.come = 0

    def meet(self) -> None:
        self.come += 1
        while self.come < 2:
            time.sleep(0.01)


KEEPER: Any = ray.remote(num_cpus=1)(Keeper)
GATE: Any = ray.remote(num_cpus=0, max_concurrency=10)(Gate)


def lent() -> None:
    """Tasks that wait lend their CPUs, so that those they wait for run."""
    ready(lambda: ray.get([outer.options(num_cpus=2).remote(2) for _ in range(2)]))


def gpus() -> None:
    """GPUs are not lent: two tasks have both, and wait for tasks that need one."""
    gate = [GATE.remote()]
    ready(lambda: ray.get([train.remote(1, gate) for _ in range(2)]))


def for_life() -> list[Any]:
    keepers = [KEEPER.remote() for _ in range(4)]
    ray.get([keeper.ping.remote() for keeper in keepers])
    return [*keepers, KEEPER.options(name="last").remote()]


def actors() -> None:
    """Four actors hold all CPUs for life, and their owner waits for the fifth."""
    keepers = for_life()
    ready(lambda: ray.get(keepers[-1].ping.remote()))


def actors_of_a_busy_driver() -> None:
    """The same, but the owner goes on."""
    keepers = for_life()
    call = keepers[-1].ping.remote()
    ready(lambda: time.sleep(10_000))
    del keepers, call


def full_bundle() -> None:
    """An actor fills the bundle in which its task should run."""
    group = placement_group([{"CPU": 1}])
    keeper = KEEPER.options(scheduling_strategy=In(placement_group=group, placement_group_bundle_index=0)).remote()
    ready(lambda: ray.get(keeper.ask.remote(group)))


def infeasible() -> None:
    """More on one node than any has."""
    group = placement_group([{"CPU": 2}, {"CPU": 1}], strategy="STRICT_PACK", name="large")
    ready(lambda: ray.get(compute.options(scheduling_strategy=In(placement_group=group)).remote()))


def too_much_in_all() -> None:
    """More than all nodes have together, which Ray does not call infeasible."""
    group = placement_group([{"CPU": 2}, {"CPU": 2}, {"CPU": 2}], strategy="SPREAD", name="wide")
    ready(lambda: ray.get(compute.options(scheduling_strategy=In(placement_group=group)).remote()))


def spread() -> None:
    """Bundles for different nodes, of which one is full with an actor of who waits for them."""
    keeper = KEEPER.options(num_cpus=2).remote()
    ray.get(keeper.ping.remote())
    group = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="STRICT_SPREAD", name="apart")
    ready(lambda: ray.get(compute.options(scheduling_strategy=In(placement_group=group)).remote()))


def second_group() -> None:
    """A placement group holds all, and who could remove it waits for another."""
    first = placement_group([{"CPU": 2}, {"CPU": 2}], name="first")
    ray.get(first.ready())
    second = placement_group([{"CPU": 1}], name="second")
    ready(lambda: ray.get(compute.options(scheduling_strategy=In(placement_group=second)).remote()))


def detached() -> None:
    """Detached actors in a namespace of their own hold the GPUs; who waits for one keeps no handle of them."""
    ray.get([keeper.ping.remote() for keeper in map(_detached, range(2))])
    ready(lambda: ray.get(train.remote(0)))


def _detached(number: int) -> Any:
    name = f"keeper {number}"
    return KEEPER.options(name=name, namespace="keepers", lifetime="detached", num_cpus=0, num_gpus=1).remote()


def ready(go_on: Callable[[], object]) -> None:
    print("ready", flush=True)
    go_on()


def main() -> None:
    way = sys.argv[1]
    ray.init(os.environ["RAY_ADDRESS"], namespace="test")
    globals()[way]()


if __name__ == "__main__":
    main()
