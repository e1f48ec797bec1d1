"""An actor gets two results, one from an actor that calls back, and one from a watchdog that fails after some time.

Without the watchdog this is a deadlock of two actors. With it ``ray.get`` ends with the error of the watchdog.

Expected: running
Members: Cashier.order, Kitchen.cook
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


@ray.remote(num_cpus=0)
def watchdog(seconds: float) -> str:
    time.sleep(seconds)
    raise TimeoutError("too late")


class Cashier:
    def order(self, kitchen: Any, seconds: float) -> str:
        me = ray.get_runtime_context().current_actor
        try:
            meal, _ = ray.get([kitchen.cook.remote(me), watchdog.remote(seconds)])
        except ray.exceptions.RayTaskError:
            return "nothing"
        return str(meal)

    def is_paid(self) -> bool:
        return True


class Kitchen:
    def cook(self, cashier: Any) -> str:
        paid: bool = ray.get(cashier.is_paid.remote())
        return "soup" if paid else "nothing"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    cashier: Any = ray.remote(Cashier).options(name="cashier").remote()
    kitchen: Any = ray.remote(Kitchen).options(name="kitchen").remote()
    ray.get([cashier.__ray_ready__.remote(), kitchen.__ray_ready__.remote()])
    meal = cashier.order.remote(kitchen, 900.0)
    print("ready", flush=True)
    print(ray.get(meal))


if __name__ == "__main__":
    main()
