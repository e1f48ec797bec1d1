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


@ray.remote(num_cpus=0, num_returns="streaming")
def stops_after(count: int) -> Any:
    for number in range(count):
        yield number + 1  # Ray sends to what it takes from, which a range cannot take, so no `yield from`
    time.sleep(10_000)


class Waiter:
    """Waits in a method, on the main thread, for what it is given inside a list."""

    def wait(self, refs: list[Any]) -> None:
        ray.get(refs)


def second_of(first: str) -> str:
    """The id of a stream's second item: of the same task, and the next number."""
    return f"{first[:48]}{(int.from_bytes(bytes.fromhex(first[48:]), 'little') + 1).to_bytes(4, 'little').hex()}"


def id_of(waitable: Any) -> str:
    """Its own id, or the one of a generator's task's own value."""
    if isinstance(waitable, str):
        return waitable
    return waitable.hex() if isinstance(waitable, ray.ObjectRef) else waitable.completed().hex()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    ref: list[Any] = [never.remote() for _ in range(8)]
    there = ray.put("there")
    ray.wait([there])
    stream, left, right = (stops_after.remote(count) for count in (1, 0, 0))
    first = next(stream).hex()
    calls = {
        "generator": (lambda: next(stream), [second_of(first)]),
        "wait-generators": (lambda: ray.wait([left, right], num_returns=2), [left, right]),
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
    expected = {name: [id_of(one) for one in refs] for name, (_, refs) in calls.items()}
    expected["MainThread"] = [call_of_actor.hex()]
    expected["Waiter"] = [ref[7].hex()]
    print("refs", json.dumps(expected), flush=True)
    print("ready", flush=True)
    ray.get(call_of_actor)


if __name__ == "__main__":
    main()
