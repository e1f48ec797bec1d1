"""Two actors that call each other, one of which waits with a timeout.

Both questions are queued behind both introductions. But the wait of Bob ends after a quarter of an hour, and then all
calls proceed.

Expected: running (finding: polling)
Members: Guest.introduce, Guest.name
Points at: name: str = ray.get(self.other.name.remote(), timeout=self.patience_s)
"""

import os
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError


class Guest:
    def __init__(self, name: str, patience_s: float | None) -> None:
        self.own_name = name
        self.patience_s = patience_s

    def meet(self, other: Any) -> None:
        self.other = other

    def name(self) -> str:
        return self.own_name

    def introduce(self) -> str:
        time.sleep(0.5)  # to shake hands
        try:
            name: str = ray.get(self.other.name.remote(), timeout=self.patience_s)
        except GetTimeoutError:
            name = "a guest"
        return f"{self.own_name} meets {name}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    guest = ray.remote(Guest)
    ann: Any = guest.options(name="Ann").remote("Ann", None)
    bob: Any = guest.options(name="Bob").remote("Bob", 900.0)
    ray.get([ann.meet.remote(bob), bob.meet.remote(ann)])
    introductions = [ann.introduce.remote(), bob.introduce.remote()]
    print("ready", flush=True)
    print(ray.get(introductions))


if __name__ == "__main__":
    main()
