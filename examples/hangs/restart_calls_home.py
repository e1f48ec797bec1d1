"""An actor whose restart waits for a caller that waits for that actor (as in ray#4604).

The shop waits for the till, whose process dies during the call. Ray restarts the till and will repeat the call. But the
new till first asks the shop for the opening balance, in `__init__`, and the shop still waits for the till.

Expected: deadlock
Members: Shop.sell, Till.__init__ (restart 1), Shop.balance, Till.take
Points at: self.balance: int = ray.get(shop.balance.remote())
Next step: Raise max_concurrency of Shop to 2 (now 1)
"""

import os
from typing import Any

import ray


class Till:
    def __init__(self, shop: Any) -> None:
        self.balance: int = ray.get(shop.balance.remote())

    def take(self, amount: int) -> int:
        if not ray.get_runtime_context().was_current_actor_reconstructed:
            os._exit(1)  # a crash
        return self.balance + amount


class Shop:
    def balance(self) -> int:
        return 100

    def sell(self, till: Any) -> int:
        total: int = ray.get(till.take.remote(5))
        return total


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    shop: Any = ray.remote(Shop).options(name="shop").remote()
    till: Any = ray.remote(Till).options(name="till", max_restarts=1, max_task_retries=1).remote(shop)
    ray.get(till.__ray_ready__.remote())
    total = shop.sell.remote(till)
    print("ready", flush=True)
    print(ray.get(total))


if __name__ == "__main__":
    main()
