"""A batch of a Serve deployment waits for a request to the deployment that waits for the batch.

Expected: deadlock
Members: Shop.order, Kitchen.cook
Behind: driver serve_batch_calls_home.py
Points at: paid = [await self.shop.is_paid.remote(dish) for dish in dishes]
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

    @serve.batch(max_batch_size=2, batch_wait_timeout_s=0.1)
    async def cook_all(self, dishes: list[str]) -> list[str]:
        paid = [await self.shop.is_paid.remote(dish) for dish in dishes]
        return [dish for dish, is_paid in zip(dishes, paid, strict=True) if is_paid]

    async def cook(self, dish: str) -> str:
        meal: str = await self.cook_all(dish)
        return meal


class Shop:
    def __init__(self, kitchen: Any) -> None:
        self.kitchen = kitchen

    async def order(self, dish: str) -> str:
        meal: str = await self.kitchen.cook.remote(dish)
        return meal

    async def is_paid(self, dish: str) -> bool:
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
