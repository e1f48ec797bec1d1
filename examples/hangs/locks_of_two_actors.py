"""Two async actors that each hold a lock of their own while they call the other, which needs its own lock.

Each account may run many calls at a time. But a transfer holds its account's lock until the money has arrived, and so
does the transfer in the other direction.

Expected: deadlock
Members: Account.transfer, Account.deposit
Behind: driver locks_of_two_actors.py
Points at: await other.deposit.remote(amount)
Next step: Release the lock in Account.transfer before it waits
"""

import asyncio
import os
from typing import Any

import ray


class Account:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.balance = 100

    async def deposit(self, amount: int) -> None:
        async with self.lock:
            self.balance += amount

    async def transfer(self, other: Any, amount: int) -> None:
        async with self.lock:
            self.balance -= amount
            await asyncio.sleep(1.0)  # to write it down
            await other.deposit.remote(amount)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    left: Any = ray.remote(Account).options(name="left").remote()
    right: Any = ray.remote(Account).options(name="right").remote()
    ray.get([left.__ray_ready__.remote(), right.__ray_ready__.remote()])
    transfers = [left.transfer.remote(right, 10), right.transfer.remote(left, 20)]
    print("ready", flush=True)
    print(ray.get(transfers))


if __name__ == "__main__":
    main()
