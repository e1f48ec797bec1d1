"""An actor with three threads, two of which wait for a third call to the same actor.

Two quotes ask their own actor for the rate. The third thread is free, and runs that call.

Expected: running
Members: driver one_thread_free.py
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


class Exchange:
    def rate(self, seconds: float) -> float:
        time.sleep(seconds)
        return 1.1

    def quote(self, amount: float, seconds: float) -> float:
        exchange = ray.get_runtime_context().current_actor
        rate: float = ray.get(exchange.rate.remote(seconds))
        return amount * rate


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    exchange: Any = ray.remote(Exchange).options(name="exchange", max_concurrency=3).remote()
    ray.get(exchange.__ray_ready__.remote())
    quotes = [exchange.quote.remote(amount, 900.0) for amount in (1.0, 2.0)]
    print("ready", flush=True)
    print(ray.get(quotes))


if __name__ == "__main__":
    main()
