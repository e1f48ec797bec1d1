"""An actor that calls itself, through two others.

The bank asks the broker, the broker asks the lawyer, and the lawyer asks the bank, which still waits for the broker.

Expected: deadlock
Members: Bank.lend, Broker.value, Lawyer.check, Bank.owner
Points at: owner: str = ray.get(bank.owner.remote())
Next step: Raise max_concurrency of Bank to 2 (now 1)
"""

import os
from typing import Any

import ray


class Bank:
    def owner(self) -> str:
        return "Smith"

    def lend(self, bank: Any, broker: Any, lawyer: Any) -> int:
        value: int = ray.get(broker.value.remote(bank, lawyer))
        return value // 2


class Broker:
    def value(self, bank: Any, lawyer: Any) -> int:
        clean: bool = ray.get(lawyer.check.remote(bank))
        return 1000 if clean else 0


class Lawyer:
    def check(self, bank: Any) -> bool:
        owner: str = ray.get(bank.owner.remote())
        return owner == "Smith"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    bank: Any = ray.remote(Bank).options(name="bank").remote()
    broker: Any = ray.remote(Broker).options(name="broker").remote()
    lawyer: Any = ray.remote(Lawyer).options(name="lawyer").remote()
    ray.get([one.__ray_ready__.remote() for one in (bank, broker, lawyer)])
    loan = bank.lend.remote(bank, broker, lawyer)
    print("ready", flush=True)
    print(ray.get(loan))


if __name__ == "__main__":
    main()
