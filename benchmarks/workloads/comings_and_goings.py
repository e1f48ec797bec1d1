"""Actors that are killed, restarted or released while others wait for them, and tasks that fail or are cancelled."""

import contextlib
import os
import random
import time

import ray
from ray.exceptions import RayError

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Phoenix:
    def work(self) -> int:
        time.sleep(random.uniform(0, 0.1))
        return os.getpid()

    def burn(self) -> None:
        os._exit(1)


@ray.remote(num_cpus=0)
class Mayfly:
    def live(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


@ray.remote(num_cpus=0, max_retries=2)
def stumble(chance: float) -> int:
    time.sleep(0.02)
    if random.random() < chance:
        os._exit(1)
    return 1


def burn_and_rise() -> None:
    phoenix = Phoenix.remote()
    work = [phoenix.work.remote() for _ in range(5)]
    phoenix.burn.options(max_task_retries=0).remote()
    work += [phoenix.work.remote() for _ in range(5)]
    ray.get(work)


def kill_one_that_is_waited_for() -> None:
    mayfly = Mayfly.remote()
    calls = [mayfly.live.remote(0.2) for _ in range(3)]
    time.sleep(random.uniform(0, 0.5))
    ray.kill(mayfly)
    for call in calls:
        with contextlib.suppress(RayError):
            ray.get(call)


def cancel() -> None:
    mayfly_work = [stumble.remote(0) for _ in range(10)]
    for call in mayfly_work[::2]:
        ray.cancel(call, force=True)
    for call in mayfly_work:
        with contextlib.suppress(RayError):
            ray.get(call)


def come_and_go(_: None) -> None:
    burn_and_rise()
    kill_one_that_is_waited_for()
    cancel()
    with contextlib.suppress(RayError):
        ray.get([stumble.remote(0.3) for _ in range(4)])


def main() -> None:
    ray.init(log_to_driver=False)
    play_for_ever(lambda: None, come_and_go)


if __name__ == "__main__":
    main()
