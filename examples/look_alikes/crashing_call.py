"""A call that kills its actor in each attempt.

Ray restarts the actor and repeats the call, without end. A snapshot cannot show whether the next attempt will fail too;
here one succeeds after a quarter of an hour.

Expected: running
Members: driver crashing_call.py
Points at: print(ray.get(parser.parse.remote("page", ready_at)))
Next step: prints the end of the log of actor Parser "parser", which dies again and again
"""

import os
import time
from typing import Any

import ray


class Parser:
    def parse(self, page: str, ready_at: float) -> str:
        time.sleep(0.3)
        if time.time() < ready_at:
            os._exit(1)  # a crash in native code
        return f"parsed {page}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    options = {"name": "parser", "max_restarts": -1, "max_task_retries": -1}
    parser: Any = ray.remote(Parser).options(**options).remote()
    ready_at = time.time() + 900.0
    print("ready", flush=True)
    print(ray.get(parser.parse.remote("page", ready_at)))


if __name__ == "__main__":
    main()
