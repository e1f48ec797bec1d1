"""Two actors that call each other, one of which polls without end.

The clerk waits for the manager, which asks the clerk for the file: a cycle. The manager polls with a timeout, in a loop
that does nothing else.

Expected: deadlock
Members: Clerk.apply, Manager.decide
Points at: done, _ = ray.wait([file], timeout=1.0)
Next step: Raise max_concurrency of Clerk to 2 (now 1)
"""

import os
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
    def decide(self, clerk: Any) -> str:
        file = clerk.file.remote()
        while True:
            done, _ = ray.wait([file], timeout=1.0)
            if done:
                return "granted"


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
