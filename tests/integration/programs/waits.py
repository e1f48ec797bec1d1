"""A driver that waits in every way dstack reads from memory, and prints as JSON which refs each thread waits for."""

import json
import os
import threading
import time
from typing import Any

import ray


@ray.remote(num_cpus=0)
def never() -> None:
    time.sleep(10_000)


class Waiter:
    """Waits in a method, on the main thread, for what it is given inside a list."""

    def wait(self, refs: list[Any]) -> None:
        ray.get(refs)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    ref: list[Any] = [never.remote() for _ in range(8)]
    there = ray.put("there")
    ray.wait([there])
    calls = {
        "get-one": (lambda: ray.get(ref[0]), [ref[0]]),
        "get-list": (lambda: ray.get([ref[1], ref[2], there]), [ref[1], ref[2], there]),
        "get-timeout": (lambda: ray.get(ref[3], timeout=5_000.5), [ref[3]]),
        "wait-2-of-3": (lambda: ray.wait([ref[4], there, ref[5]], num_returns=2), [ref[4], there, ref[5]]),
        "wait-timeout": (lambda: ray.wait([ref[6]], timeout=4_000), [ref[6]]),
    }
    for name, (call, _) in calls.items():
        threading.Thread(target=call, name=name, daemon=True).start()
    actor: Any = ray.remote(Waiter).remote()
    call_of_actor = actor.wait.remote([ref[7]])
    expected = {name: [one.hex() for one in refs] for name, (_, refs) in calls.items()}
    expected["MainThread"] = [call_of_actor.hex()]
    expected["Waiter"] = [ref[7].hex()]
    print("refs", json.dumps(expected), flush=True)
    print("ready", flush=True)
    ray.get(call_of_actor)


if __name__ == "__main__":
    main()
