"""Two actors that call each other, until a thread of one of them ends its process.

Without the thread this is a deadlock.

Expected: running
Members: Parrot.answer, Parrot.greet
Points at: time.sleep(900.0)
"""

import os
import threading
import time
from typing import Any

import ray


class Parrot:
    def greet(self, other: Any) -> str:
        threading.Thread(target=self.watch, name="watchdog", daemon=True).start()
        me = ray.get_runtime_context().current_actor
        return "hello " + ray.get(other.answer.remote(me))

    def answer(self, other: Any) -> str:
        return str(ray.get(other.name.remote()))

    def name(self) -> str:
        return "parrot"

    def watch(self) -> None:
        time.sleep(900.0)
        self.stop_process()

    def stop_process(self) -> None:
        os._exit(1)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    first: Any = ray.remote(Parrot).options(name="first").remote()
    second: Any = ray.remote(Parrot).options(name="second").remote()
    ray.get([first.name.remote(), second.name.remote()])
    greeting = first.greet.remote(second)
    print("ready", flush=True)
    print(ray.get(greeting))


if __name__ == "__main__":
    main()
