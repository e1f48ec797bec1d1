"""An actor that calls itself and returns the ref instead of waiting for it.

The call is queued on the actor itself and starts as soon as `report` has returned, which it has.

Expected: running
Members: driver refs_instead_of_gets.py
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


class Archive:
    def search(self, seconds: float) -> str:
        time.sleep(seconds)
        return "found"

    def report(self, seconds: float) -> "list[ray.ObjectRef[str]]":
        me = ray.get_runtime_context().current_actor
        return [me.search.remote(seconds)]


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    archive: Any = ray.remote(Archive).options(name="archive").remote()
    (found,) = ray.get(archive.report.remote(900.0))
    print("ready", flush=True)
    print(ray.get(found))


if __name__ == "__main__":
    main()
