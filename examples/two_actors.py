"""Two actors that wait for each other.

The cashier takes an order and waits for the kitchen. Before it cooks, the kitchen asks the cashier whether the order is
paid, and waits for the answer. An actor runs one call at a time, and the cashier is still running the order: the
question stays in its queue, and both wait for ever.

Expected: deadlock
Members: Cashier.order, Kitchen.cook, Cashier.is_paid
Behind: driver two_actors.py
Points at: paid: bool = ray.get(self.cashier.is_paid.remote(dish))
Next step: Raise max_concurrency of Cashier to 2 (now 1)
"""

import os
from typing import Any

import ray


class Cashier:
    def order(self, dish: str, kitchen: Any) -> str:
        meal: str = ray.get(kitchen.cook.remote(dish))
        return meal

    def is_paid(self, dish: str) -> bool:
        return True


class Kitchen:
    def open(self, cashier: Any) -> None:
        self.cashier = cashier

    def cook(self, dish: str) -> str:
        paid: bool = ray.get(self.cashier.is_paid.remote(dish))
        return f"hot {dish}" if paid else "nothing"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    cashier: Any = ray.remote(Cashier).options(name="cashier").remote()
    kitchen: Any = ray.remote(Kitchen).options(name="kitchen").remote()
    ray.get([cashier.__ray_ready__.remote(), kitchen.open.remote(cashier)])
    meal = cashier.order.remote("soup", kitchen)
    print("ready", flush=True)
    print(ray.get(meal))


if __name__ == "__main__":
    main()
