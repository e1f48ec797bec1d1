"""Two async actors that each hold a lock while they call the other, which needs its lock; one has a timeout.

Without the timeout this is a deadlock. The transfer of the left account is cancelled after the timeout, and releases
its lock.

Expected: running (finding: polling)
Members: Account.transfer, Account.deposit
Points at: await asyncio.wait_for(other.deposit.remote(amount), timeout)
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

    async def transfer(self, other: Any, amount: int, timeout: float | None) -> None:
        async with self.lock:
            self.balance -= amount
            await asyncio.sleep(1.0)  # to write it down
            await asyncio.wait_for(other.deposit.remote(amount), timeout)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    left: Any = ray.remote(Account).options(name="left").remote()
    right: Any = ray.remote(Account).options(name="right").remote()
    ray.get([left.__ray_ready__.remote(), right.__ray_ready__.remote()])
    transfers = [left.transfer.remote(right, 10, 900.0), right.transfer.remote(left, 20, None)]
    print("ready", flush=True)
    print(ray.get(transfers))


if __name__ == "__main__":
    main()
