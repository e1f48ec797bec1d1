"""Two Serve deployments whose constructors wait for a request to each other: no replica ever starts.

The driver polls Serve's controller in serve.run.

Expected: deadlock
Members: Kitchen.__init__, Shop.__init__
Points at: self.menu: list[str] = await kitchen.menu.remote()
Needs: ray[serve]
Next step: Do not wait for queued request Kitchen.menu in Shop.__init__
"""

import os
from typing import Any

import ray
from ray import serve


class Kitchen:
    async def __init__(self) -> None:  # type: ignore[misc]  # Serve awaits it
        self.shop = serve.get_deployment_handle("Shop", "default")
        self.hour: int = await self.shop.opens_at.remote()

    async def menu(self) -> list[str]:
        return ["soup"]


class Shop:
    async def __init__(self, kitchen: Any) -> None:  # type: ignore[misc]  # Serve awaits it
        self.menu: list[str] = await kitchen.menu.remote()

    async def opens_at(self) -> int:
        return 9


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "NoServer"})
    print("ready", flush=True)
    kitchen: Any = serve.deployment(Kitchen)
    shop: Any = serve.deployment(Shop)
    serve.run(shop.bind(kitchen.bind()), route_prefix=None)


if __name__ == "__main__":
    main()
