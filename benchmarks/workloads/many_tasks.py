"""As many ended calls as the GCS keeps, and then a call that does not return."""

import sys
import time

import ray

CALLERS = 3
BATCH = 1000


@ray.remote(num_cpus=0)
class Worker:
    def step(self) -> int:
        return 1

    def hang(self) -> None:
        time.sleep(36_000)


def main() -> None:
    ray.init()
    workers = [Worker.remote() for _ in range(CALLERS)]
    calls = 0
    while calls < int(sys.argv[1]):
        calls += sum(ray.get([worker.step.remote() for worker in workers for _ in range(BATCH)]))
    print("ready", flush=True)
    ray.get(workers[0].hang.remote())


if __name__ == "__main__":
    main()
