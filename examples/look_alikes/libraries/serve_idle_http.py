"""A Serve application with an HTTP proxy and two deployments, without requests.

Expected: idle
Outside: driver in system call pause
Needs: ray[serve]
Next step: driver serve_idle_http.py waits for a signal
"""

import os
import signal
import urllib.request
from typing import Any

import ray
from ray import serve

PORT = 18425


class Kitchen:
    def cook(self, dish: str) -> str:
        return f"hot {dish}"


class Shop:
    def __init__(self, kitchen: Any) -> None:
        self.kitchen = kitchen

    async def __call__(self, request: Any) -> str:
        meal: str = await self.kitchen.cook.remote(request.query_params["dish"])
        return meal


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "HeadOnly", "port": PORT})
    kitchen: Any = serve.deployment(Kitchen)
    shop: Any = serve.deployment(Shop)
    serve.run(shop.bind(kitchen.bind()))
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/?dish=soup") as response:
        print(response.read())
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
