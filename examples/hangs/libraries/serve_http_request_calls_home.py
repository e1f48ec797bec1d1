"""An HTTP request to a Serve deployment, which waits for another one that calls it again.

Shop runs one request at a time, so is_paid never starts. The client waits outside Ray; here the client is the driver.

Expected: deadlock
Members: Shop.__call__, Kitchen.cook
Points at: if await self.shop.is_paid.remote(dish):
Needs: ray[serve]
Next step: Raise max_ongoing_requests of Shop to 2 (now 1)
"""

import os
import urllib.request
from typing import Any

import ray
from ray import serve

LIMIT = 1
PORT = 18423


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

    async def __call__(self, request: Any) -> str:
        meal: str = await self.kitchen.cook.remote(request.query_params["dish"])
        return meal

    async def is_paid(self, dish: str) -> bool:
        return bool(dish)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "HeadOnly", "port": PORT})
    kitchen: Any = serve.deployment(max_ongoing_requests=LIMIT)(Kitchen)
    shop: Any = serve.deployment(max_ongoing_requests=LIMIT)(Shop)
    serve.run(shop.bind(kitchen.bind()))
    print("ready", flush=True)
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/?dish=soup") as response:
        print(response.read())


if __name__ == "__main__":
    main()
