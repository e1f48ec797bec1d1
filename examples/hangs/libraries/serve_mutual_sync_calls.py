"""Two Serve deployments whose sync methods call each other, each of which takes one request at a time.

Serve runs sync methods in threads. Kitchen.cook waits for Shop.is_paid, which cannot start while Shop.order waits.

Expected: deadlock
Members: Shop.order, Kitchen.cook
Behind: driver serve_mutual_sync_calls.py
Points at: if self.shop.is_paid.remote(dish).result():
Needs: ray[serve]
Next step: Raise max_ongoing_requests of Shop to 2 (now 1)
"""

import os
from typing import Any

import ray
from ray import serve

LIMIT = 1


class Kitchen:
    def __init__(self) -> None:
        self.shop = serve.get_deployment_handle("Shop", "default")

    def cook(self, dish: str) -> str:
        if self.shop.is_paid.remote(dish).result():
            return f"hot {dish}"
        return "nothing"


class Shop:
    def __init__(self, kitchen: Any) -> None:
        self.kitchen = kitchen

    def order(self, dish: str) -> str:
        meal: str = self.kitchen.cook.remote(dish).result()
        return meal

    def is_paid(self, dish: str) -> bool:
        return bool(dish)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "NoServer"})
    kitchen: Any = serve.deployment(max_ongoing_requests=LIMIT)(Kitchen)
    shop: Any = serve.deployment(max_ongoing_requests=LIMIT)(Shop)
    handle = serve.run(shop.bind(kitchen.bind()), route_prefix=None)
    print("ready", flush=True)
    print(handle.order.remote("soup").result())


if __name__ == "__main__":
    main()
