"""A thread of an actor waits for an event that only a handler of a signal and a queued call can set.

The queued call never runs, as the actor's only slot is occupied. Without the handler this is a deadlock.

Expected: stalled
Members: Gate.wait
Points at: self.open.wait()
Next step: If Gate.set, which is queued, would end the wait, let it run
"""

import os
import signal
import threading
from typing import Any

import ray


class Gate:
    def __init__(self) -> None:
        self.open = threading.Event()
        signal.signal(signal.SIGUSR2, lambda *_: self.open.set())

    def wait(self) -> str:
        self.open.wait()
        return "open"

    def set(self) -> None:
        self.open.set()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    gate: Any = ray.remote(Gate).options(name="gate").remote()
    ray.get(gate.__ray_ready__.remote())
    calls = [gate.wait.remote(), gate.set.remote()]
    print("ready", flush=True)
    print(ray.get(calls))


if __name__ == "__main__":
    main()
