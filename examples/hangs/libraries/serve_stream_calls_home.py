"""A Serve deployment consumes the stream of another one, which calls it before the next item.

Shop runs one request at a time, so is_paid never starts while order waits for the next course.

Expected: deadlock
Members: Shop.order, Kitchen.courses
Behind: driver serve_stream_calls_home.py
Points at: return [course async for course in self.kitchen.courses.remote(dish)]
Needs: ray[serve]
Next step: Raise max_ongoing_requests of Shop to 2 (now 1)
"""

import os
from collections.abc import AsyncIterator
from typing import Any

import ray
from ray import serve

LIMIT = 1


class Kitchen:
    def __init__(self) -> None:
        self.shop = serve.get_deployment_handle("Shop", "default")

    async def courses(self, dish: str) -> AsyncIterator[str]:
        yield "bread"
        if await self.shop.is_paid.remote(dish):
            yield dish


class Shop:
    def __init__(self, kitchen: Any) -> None:
        self.kitchen = kitchen.options(stream=True)

    async def order(self, dish: str) -> list[str]:
        return [course async for course in self.kitchen.courses.remote(dish)]

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
