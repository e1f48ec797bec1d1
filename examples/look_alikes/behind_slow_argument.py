"""A call that is ready, but is queued behind one whose argument is slow (as in ray#60910).

Calls from one caller to one actor start in the order in which they were made, even if the actor is idle.

Expected: running
Members: driver behind_slow_argument.py, Register.enter, Register.size
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


@ray.remote
def survey(seconds: float) -> int:
    time.sleep(seconds)
    return 1


class Register:
    def enter(self, area: int) -> None:
        self.area = area

    def size(self) -> int:
        return 0


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    register: Any = ray.remote(Register).options(name="register").remote()
    ray.get(register.__ray_ready__.remote())
    register.enter.remote(survey.remote(900.0))
    size = register.size.remote()
    print("ready", flush=True)
    print(ray.get(size))


if __name__ == "__main__":
    main()
