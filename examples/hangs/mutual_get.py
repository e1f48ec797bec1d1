"""Two actors that call each other while each of them runs a call (as in ray#3307).

Both introduce themselves at the same time. Each asks the other for its name and waits. Each question is queued on an
actor that is busy waiting.

Expected: deadlock
Members: Guest.introduce, Guest.name
Points at: name: str = ray.get(self.other.name.remote())
Next step: Raise max_concurrency of Guest to 2 (now 1)
"""

import os
import time
from typing import Any

import ray


class Guest:
    def __init__(self, name: str) -> None:
        self.own_name = name

    def meet(self, other: Any) -> None:
        self.other = other

    def name(self) -> str:
        return self.own_name

    def introduce(self) -> str:
        time.sleep(0.5)  # to shake hands
        name: str = ray.get(self.other.name.remote())
        return f"{self.own_name} meets {name}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    guest = ray.remote(Guest)
    ann: Any = guest.options(name="Ann").remote("Ann")
    bob: Any = guest.options(name="Bob").remote("Bob")
    ray.get([ann.meet.remote(bob), bob.meet.remote(ann)])
    introductions = [ann.introduce.remote(), bob.introduce.remote()]
    print("ready", flush=True)
    print(ray.get(introductions))


if __name__ == "__main__":
    main()
