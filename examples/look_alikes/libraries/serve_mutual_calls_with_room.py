"""Two Serve deployments that call each other, each of which takes two requests at a time.

The request to Shop.is_paid starts while Shop.order waits, but it is slow.

Expected: running
Members: Shop.order, Kitchen.cook
Points at: await asyncio.sleep(900.0)
Ends in: Shop.is_paid, 1 directly, 3 in all
Needs: ray[serve]
"""

import asyncio
import os
from typing import Any

import ray
from ray import serve

LIMIT = 2


class Kitchen:
    def __init__(self) -> None:
        self.shop = serve.get_deployment_handle("Shop", "default")

    async def cook(self, dish: str) -> str:
        if await self.shop.is_paid.remote(dish):
            return f"hot {dish}"
        return "nothing"


class Shop:
    def __init__(self, kitchen: Any) -> None:
        self.kitchen = kitchen

    async def order(self, dish: str) -> str:
        meal: str = await self.kitchen.cook.remote(dish)
        return meal

    async def is_paid(self, dish: str) -> bool:
        await asyncio.sleep(900.0)
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
