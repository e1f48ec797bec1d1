"""A call whose argument can only be made by a later call of the same caller, to the same actor.

`Shop.sell` sends the bill to the register before it is written. The clerk asks the shop for the total, and the shop
asks the register. Ray runs calls of one caller to an actor in their order, so that question waits behind the bill.

Expected: deadlock
Members: Clerk.write, Shop.total, Register.total, Register.enter
Points at: return ray.get(self.register.total.remote())
Next step: Pass the ObjectRef to Register.enter inside a list, so that it starts without the value
"""

import os
from typing import Any

import ray


class Register:
    def __init__(self) -> None:
        self.bills: list[int] = []

    def enter(self, bill: int) -> int:
        self.bills.append(bill)
        return len(self.bills)

    def total(self) -> int:
        return sum(self.bills)


class Clerk:
    def write(self, shop: Any) -> int:
        total: int = ray.get(shop.total.remote())
        return total + 1


class Shop:
    def __init__(self, register: Any, clerk: Any) -> None:
        self.register, self.clerk = register, clerk

    def sell(self) -> int:
        bill = self.clerk.write.remote(ray.get_runtime_context().current_actor)
        return ray.get(self.register.enter.remote(bill))

    def total(self) -> int:
        return ray.get(self.register.total.remote())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    register: Any = ray.remote(Register).options(name="register").remote()
    clerk: Any = ray.remote(Clerk).options(name="clerk").remote()
    shop: Any = ray.remote(Shop).options(name="shop", max_concurrency=2).remote(register, clerk)
    ray.get([one.__ray_ready__.remote() for one in (register, clerk, shop)])
    sold = shop.sell.remote()
    print("ready", flush=True)
    print(ray.get(sold))


if __name__ == "__main__":
    main()
