"""A multiplexed Serve deployment that sends a request to its caller while it loads a model.

Expected: deadlock
Members: Shop.order, Kitchen.cook
Behind: driver serve_model_load_calls_home.py
Points at: if await self.shop.is_paid.remote(model_id):
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

    @serve.multiplexed(max_num_models_per_replica=2)
    async def recipe(self, model_id: str) -> str:
        if await self.shop.is_paid.remote(model_id):
            return f"recipe {model_id}"
        return "nothing"

    async def cook(self, dish: str) -> str:
        recipe: str = await self.recipe(serve.get_multiplexed_model_id())
        return f"{dish} by {recipe}"


class Shop:
    def __init__(self, kitchen: Any) -> None:
        self.kitchen = kitchen

    async def order(self, dish: str) -> str:
        meal: str = await self.kitchen.options(multiplexed_model_id="spicy").cook.remote(dish)
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
