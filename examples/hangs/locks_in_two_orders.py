"""Two threads of one driver that take two locks in opposite order.

Each thread holds one lock and waits for the other one. Ray is not involved: Ray's own tools show only an idle driver.

Expected: deadlock
Members: thread "debit" of driver locks_in_two_orders.py, thread "credit" of driver locks_in_two_orders.py
Behind: driver locks_in_two_orders.py
Points at: with second:
Next step: Take the locks in the same order in thread "credit" of driver locks_in_two_orders.py and thread "debit"
"""

import os
import threading
from typing import Any

import ray


def move(first: Any, second: Any, both_begun: threading.Barrier) -> None:
    with first:
        both_begun.wait()
        with second:
            print("moved")


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    savings, current = threading.RLock(), threading.RLock()
    both_begun = threading.Barrier(2)
    debit = threading.Thread(target=move, args=(savings, current, both_begun), name="debit")
    credit = threading.Thread(target=move, args=(current, savings, both_begun), name="credit")
    debit.start()
    credit.start()
    print("ready", flush=True)
    debit.join()
    credit.join()


if __name__ == "__main__":
    main()
