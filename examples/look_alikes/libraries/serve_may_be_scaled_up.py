"""Two Serve deployments that call each other, of which one may soon get a second replica.

Autoscaling is slow, but then the queued request to Shop.is_paid can start there.

Expected: running
Members: Shop.order, Kitchen.cook
Points at: if await self.shop.is_paid.remote(dish):
Needs: ray[serve]
Next step: `serve status` shows the state of the new replica of Serve deployment Shop
"""

import os
from typing import Any

import ray
from ray import serve

LIMIT = 1


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
        return bool(dish)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "NoServer"})
    scaling = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 0.5, "upscale_delay_s": 900.0}
    kitchen: Any = serve.deployment(max_ongoing_requests=LIMIT, ray_actor_options={"num_cpus": 0})(Kitchen)
    shop: Any = serve.deployment(max_ongoing_requests=LIMIT, autoscaling_config=scaling)(Shop)
    handle = serve.run(shop.bind(kitchen.bind()), route_prefix=None)
    print("ready", flush=True)
    print(handle.order.remote("soup").result())


if __name__ == "__main__":
    main()
