"""An actor that calls itself and waits for the result.

`total` asks for the parts through the actor's own handle instead of `self`. These calls are queued behind `total`,
which occupies the actor until it has their results.

Expected: deadlock
Members: Ledger.total, Ledger.entry
Behind: driver self_call.py
Points at: parts: list[int] = ray.get([me.entry.remote(0), me.entry.remote(1)])
Next step: Run self.entry() in Ledger.total instead of a call on the actor's own handle
"""

import os
from typing import Any

import ray


class Ledger:
    def __init__(self) -> None:
        self.entries = [3, 4]

    def entry(self, index: int) -> int:
        return self.entries[index]

    def total(self) -> int:
        me = ray.get_runtime_context().current_actor
        parts: list[int] = ray.get([me.entry.remote(0), me.entry.remote(1)])
        return sum(parts)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    ledger: Any = ray.remote(Ledger).options(name="ledger").remote()
    print("first entry:", ray.get(ledger.entry.remote(0)))
    total = ledger.total.remote()
    print("ready", flush=True)
    print("total:", ray.get(total))


if __name__ == "__main__":
    main()
