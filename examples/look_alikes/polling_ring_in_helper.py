"""Two actors that call each other, one of which polls in a method that gives up after a deadline.

The clerk waits for the manager, which asks the clerk for the file: a cycle. The manager polls in a loop that has no
end, but the method that polls raises an exception after a quarter of an hour.

Expected: running (finding: polling)
Members: Clerk.apply, Manager.decide
Points at: done, _ = ray.wait([file], timeout=1.0)
"""

import os
import time
from typing import Any

import ray


class Clerk:
    def file(self) -> str:
        return "file"

    def apply(self, manager: Any) -> str:
        me = ray.get_runtime_context().current_actor
        decision: str = ray.get(manager.decide.remote(me))
        return decision


class Manager:
    def __init__(self) -> None:
        self.closes_at = 0.0

    def look_for(self, file: Any) -> bool:
        done, _ = ray.wait([file], timeout=1.0)
        if time.monotonic() > self.closes_at:
            raise TimeoutError(file)
        return bool(done)

    def decide(self, clerk: Any) -> str:
        file = clerk.file.remote()
        self.closes_at = time.monotonic() + 900
        try:
            while True:
                if self.look_for(file):
                    return "granted"
        except TimeoutError:
            return "granted unseen"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    clerk: Any = ray.remote(Clerk).options(name="clerk").remote()
    manager: Any = ray.remote(Manager).options(name="manager").remote()
    ray.get([clerk.__ray_ready__.remote(), manager.__ray_ready__.remote()])
    decision = clerk.apply.remote(manager)
    print("ready", flush=True)
    print(ray.get(decision))


if __name__ == "__main__":
    main()
