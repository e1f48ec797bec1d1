"""Many short tasks, a window of them at a time, collected with ray.wait as they end."""

import time

import ray

WINDOW = 16


@ray.remote(num_cpus=0.5)
def square(number: int) -> int:
    time.sleep(0.01)
    return number * number


def main() -> None:
    ray.init()
    pending = [square.remote(number) for number in range(WINDOW)]
    print("ready", flush=True)
    while True:
        done, pending = ray.wait(pending, num_returns=WINDOW // 4)
        ray.get(done)
        time.sleep(0.02)
        pending += [square.remote(number) for number in range(len(done))]


if __name__ == "__main__":
    main()
