"""Many short tasks, a window of them at a time, collected with ray.wait as they end."""

import time

import ray

from benchmarks.soak.rounds import play_for_ever

WINDOW = 16


@ray.remote(num_cpus=0.5)
def square(number: int) -> int:
    time.sleep(0.01)
    return number * number


def collect(_: None) -> None:
    pending, left = [square.remote(number) for number in range(WINDOW)], 40 * WINDOW
    while pending:
        done, pending = ray.wait(pending, num_returns=min(WINDOW // 4, len(pending)))
        ray.get(done)
        time.sleep(0.02)
        left -= len(done)
        pending += [square.remote(number) for number in range(min(len(done), max(0, left)))]


def main() -> None:
    ray.init()
    play_for_ever(lambda: None, collect)


if __name__ == "__main__":
    main()
