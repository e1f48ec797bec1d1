"""Tests that pass on a cluster with a hang of another job; one test leaves a deadlock."""

import os
import time
from typing import Any, cast

import ray


@ray.remote(num_cpus=0)
class Clerk:
    def ready(self) -> None:
        pass

    def asks_itself(self) -> Any:
        me = ray.get_runtime_context().current_actor
        return ray.get(me.ready.remote())


@ray.remote(num_cpus=0)
def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


ray.init(os.environ["CLUSTER"], log_to_driver=False)
clerk = cast(Any, Clerk).remote()
ray.get(clerk.ready.remote())


def test_nothing_left() -> None:
    assert ray.get(nap.remote(0)) == 0


def test_slow_beside_others_deadlock() -> None:
    assert ray.get(nap.remote(4)) == 4


def test_leaves_a_deadlock() -> None:
    clerk.asks_itself.remote()


def test_finished_work() -> None:
    assert ray.get(nap.remote(0)) == 0


def test_ends_ray() -> None:
    ray.shutdown()
