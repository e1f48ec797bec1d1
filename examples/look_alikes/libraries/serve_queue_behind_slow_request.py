"""Requests that are queued behind a slow one, in a Serve deployment that takes one at a time.

Expected: running
Members: driver serve_queue_behind_slow_request.py
Points at: time.sleep(900.0)
Needs: ray[serve]
"""

import os
import time
from typing import Any

import ray
from ray import serve


class Kitchen:
    def cook(self, dish: str) -> str:
        time.sleep(900.0)
        return f"hot {dish}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "NoServer"})
    kitchen: Any = serve.deployment(max_ongoing_requests=1)(Kitchen)
    handle = serve.run(kitchen.bind(), route_prefix=None)
    meals = [handle.cook.remote(dish) for dish in ("soup", "rice", "fish")]
    print("ready", flush=True)
    print(meals[-1].result())


if __name__ == "__main__":
    main()
