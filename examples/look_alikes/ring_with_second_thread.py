"""Two actors that call each other, one of which has a second thread.

It looks like the deadlock of two busy actors. But the kitchen's call to the cashier runs on a free thread; only the
payment is slow.

Expected: running
Members: Cashier.order, Kitchen.cook
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


class Cashier:
    def order(self, kitchen: Any, seconds: float) -> str:
        me = ray.get_runtime_context().current_actor
        meal: str = ray.get(kitchen.cook.remote(me, seconds))
        return meal

    def is_paid(self, seconds: float) -> bool:
        time.sleep(seconds)
        return True


class Kitchen:
    def cook(self, cashier: Any, seconds: float) -> str:
        paid: bool = ray.get(cashier.is_paid.remote(seconds))
        return "soup" if paid else "nothing"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    cashier: Any = ray.remote(Cashier).options(name="cashier", max_concurrency=2).remote()
    kitchen: Any = ray.remote(Kitchen).options(name="kitchen").remote()
    ray.get([cashier.__ray_ready__.remote(), kitchen.__ray_ready__.remote()])
    meal = cashier.order.remote(kitchen, 900.0)
    print("ready", flush=True)
    print(ray.get(meal))


if __name__ == "__main__":
    main()
