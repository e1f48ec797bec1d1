"""An async method of a Serve deployment that awaits an actor, which calls the deployment again, which is slow.

Expected: running
Members: Shop.order, Store.price
Points at: await asyncio.sleep(900.0)
Needs: ray[serve]
"""

import asyncio
import os
from typing import Any

import ray
from ray import serve


class Store:
    def price(self, dish: str) -> float:
        shop = serve.get_deployment_handle("Shop", "default")
        discount: float = shop.discount.remote(dish).result()
        return len(dish) - discount


class Shop:
    def __init__(self) -> None:
        self.store = ray.remote(num_cpus=0)(Store).remote()

    async def order(self, dish: str) -> str:
        price: float = await self.store.price.remote(dish)
        return f"{dish} for {price}"

    async def discount(self, dish: str) -> float:
        await asyncio.sleep(900.0)
        return 0.5


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "NoServer"})
    shop: Any = serve.deployment(Shop)
    handle = serve.run(shop.bind(), route_prefix=None)
    print("ready", flush=True)
    print(handle.order.remote("soup").result())


if __name__ == "__main__":
    main()
