"""A Serve deployment that calls itself once more than it has room for.

The two ongoing requests are those of depth 3 and 2. The request of depth 1 stays queued behind them.

Expected: deadlock
Members: Tree.count
Behind: driver serve_calls_itself.py
Points at: below: int = await self.own.count.remote(depth - 1)
Needs: ray[serve]
Next step: Do not wait for queued request Tree.count in Tree.count
"""

import os
from typing import Any

import ray
from ray import serve


class Tree:
    def __init__(self) -> None:
        self.own = serve.get_deployment_handle("Tree", "default")

    async def count(self, depth: int) -> int:
        if depth == 0:
            return 1
        below: int = await self.own.count.remote(depth - 1)
        return 2 * below


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    serve.start(http_options={"location": "NoServer"})
    tree: Any = serve.deployment(max_ongoing_requests=2)(Tree)
    handle = serve.run(tree.bind(), route_prefix=None)
    print("ready", flush=True)
    print(handle.count.remote(3).result())


if __name__ == "__main__":
    main()
