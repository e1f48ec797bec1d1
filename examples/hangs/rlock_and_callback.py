"""A thread that holds an RLock while it waits for a call that needs the lock.

The account may run two calls at a time and guards its balance with an RLock. `pay` holds the lock while the bank
confirms. The bank first reads the balance, on the other thread of the account, which does not own the lock.

Expected: deadlock
Members: Bank.confirm
Points at: with self.lock:
Next step: Release the lock in Account.pay before it waits
"""

import os
import threading
from typing import Any

import ray


class Account:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.amount = 100

    def balance(self) -> int:
        with self.lock:
            return self.amount

    def pay(self, amount: int, bank: Any) -> int:
        account = ray.get_runtime_context().current_actor
        with self.lock:
            if ray.get(bank.confirm.remote(amount, account)):
                self.amount -= amount
        return self.amount


class Bank:
    def confirm(self, amount: int, account: Any) -> bool:
        balance: int = ray.get(account.balance.remote())
        return balance >= amount


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    account: Any = ray.remote(Account).options(name="account", max_concurrency=2).remote()
    bank: Any = ray.remote(Bank).options(name="bank").remote()
    ray.get([account.__ray_ready__.remote(), bank.__ray_ready__.remote()])
    amount = account.pay.remote(30, bank)
    print("ready", flush=True)
    print(ray.get(amount))


if __name__ == "__main__":
    main()
