"""Makes headway for ever: short tasks one after the other, beside a call that takes its time. Says ready at once."""

import time
from typing import Any

import ray


class Slow:
    def work(self) -> None:
        time.sleep(3600)


@ray.remote(num_cpus=0)
def short(number: int) -> int:
    return number + 1


def main() -> None:
    ray.init()
    slow: Any = ray.remote(num_cpus=0)(Slow).remote()
    later = slow.work.remote()
    number = 0
    print("ready", flush=True)
    while not ray.wait([later], timeout=0)[0]:
        number = ray.get(short.remote(number))


if __name__ == "__main__":
    main()
