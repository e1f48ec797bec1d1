"""Two actors that call each other, and a supervisor that kills one of them after some time.

Without the supervisor this is a deadlock. With it the calls end with an error.

Expected: running
Members: Cashier.order, Kitchen.cook
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


class Cashier:
    def order(self, kitchen: Any) -> str:
        me = ray.get_runtime_context().current_actor
        meal: str = ray.get(kitchen.cook.remote(me))
        return meal

    def is_paid(self) -> bool:
        return True


class Kitchen:
    def cook(self, cashier: Any) -> str:
        paid: bool = ray.get(cashier.is_paid.remote())
        return "soup" if paid else "nothing"


class Supervisor:
    def __init__(self, watched: Any) -> None:
        self.watched = watched

    def watch(self, seconds: float) -> None:
        time.sleep(seconds)
        self.end()

    def end(self) -> None:
        ray.kill(self.watched)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    cashier: Any = ray.remote(Cashier).options(name="cashier").remote()
    kitchen: Any = ray.remote(Kitchen).options(name="kitchen").remote()
    supervisor: Any = ray.remote(Supervisor).options(name="supervisor", num_cpus=0).remote(kitchen)
    ray.get([one.__ray_ready__.remote() for one in (cashier, kitchen, supervisor)])
    supervisor.watch.remote(900.0)
    meal = cashier.order.remote(kitchen)
    print("ready", flush=True)
    print(ray.get(meal))


if __name__ == "__main__":
    main()
