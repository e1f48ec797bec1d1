"""An actor waits for a request to a Serve deployment, which calls the same actor.

Store has one slot, which restock occupies, so price never starts.

Expected: deadlock
Members: Store.restock, Shop.sold
Behind: driver serve_and_actor_call_each_other.py
Points at: sold: str = self.shop.sold.remote().result()
Needs: ray[serve]
Next step: Raise max_concurrency of Store to 2 (now 1)
"""

import os
from typing import Any

import ray
from ray import serve


class Store:
    def __init__(self) -> None:
        self.shop = serve.get_deployment_handle("Shop", "default")

    def restock(self) -> str:
        sold: str = self.shop.sold.remote().result()
        return sold

    def price(self, dish: str) -> float:
        return float(len(dish))


class Shop:
    def __init__(self) -> None:
        self.store = ray.get_actor("store")

    async def sold(self) -> str:
        price: float = await self.store.price.remote("soup")
        return f"soup for {price}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "NoServer"})
    store = ray.remote(Store).options(name="store", num_cpus=0).remote()
    shop: Any = serve.deployment(Shop)
    serve.run(shop.bind(), route_prefix=None)
    print("ready", flush=True)
    print(ray.get(store.restock.remote()))


if __name__ == "__main__":
    main()
