"""An async method of a Serve deployment that calls ray.get on an actor, which calls the deployment again.

The replica accepts the request to Shop.discount, but ray.get blocks the event loop on which it would run.

Expected: deadlock
Members: Shop.order, Store.price
Behind: driver serve_get_blocks_event_loop.py
Points at: price: float = ray.get(self.store.price.remote(dish))
Needs: ray[serve]
Next step: Await the ObjectRef instead of ray.get in Shop.order, which blocks its event loop
"""

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
        price: float = ray.get(self.store.price.remote(dish))
        return f"{dish} for {price}"

    async def discount(self, dish: str) -> float:
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
