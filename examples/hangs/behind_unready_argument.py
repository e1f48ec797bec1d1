"""A call that is ready, but is queued behind one that is not (as in ray#60910).

Calls from one caller to one actor start in the order in which they were made. The first takes the result of a task that
asks for a resource that no node has. The second needs nothing, and waits too.

Expected: hang (finding: infeasible)
Members: survey
Points at: print(ray.get(size))
Next step: Reduce what survey asks for
"""

import os
from typing import Any

import ray


@ray.remote(resources={"theodolite": 1})
def survey() -> int:
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
    register.enter.remote(survey.remote())
    size = register.size.remote()
    print("ready", flush=True)
    print(ray.get(size))


if __name__ == "__main__":
    main()
