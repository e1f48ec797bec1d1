"""An actor with two threads, both of which wait for a third call to the same actor.

One `quote` at a time works: it asks its own actor for the rate, on the other thread. Two `quote` calls at a time occupy
both threads, so neither `rate` can start.

Expected: deadlock
Members: Exchange.quote, Exchange.rate
Points at: rate: float = ray.get(exchange.rate.remote())
Next step: Run self.rate() in Exchange.quote instead of a call on the actor's own handle
"""

import os
import threading
from typing import Any

import ray


class Exchange:
    def __init__(self) -> None:
        self.both_begun = threading.Barrier(2)

    def rate(self) -> float:
        return 1.1

    def quote(self, amount: float) -> float:
        self.both_begun.wait()
        exchange = ray.get_runtime_context().current_actor
        rate: float = ray.get(exchange.rate.remote())
        return amount * rate


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    exchange: Any = ray.remote(Exchange).options(name="exchange", max_concurrency=2).remote()
    ray.get(exchange.rate.remote())
    quotes = [exchange.quote.remote(amount) for amount in (1.0, 2.0)]
    print("ready", flush=True)
    print(ray.get(quotes))


if __name__ == "__main__":
    main()
