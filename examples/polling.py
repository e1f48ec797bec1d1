"""A driver that polls for a slow task instead of waiting for it.

Each `ray.wait` returns after half a second and is called again, so the driver can proceed at any time. A snapshot
nearly always finds it inside `ray.wait`: this is a wait, but never a deadlock.

Expected: running (finding: polling)
Members: driver polling.py
Points at: time.sleep(seconds)
Ends in: simulate, 1 directly, 1 in all
"""

import os
import time

import ray


@ray.remote
def simulate(seconds: float) -> str:
    time.sleep(seconds)
    return "simulated"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    pending = [simulate.remote(900.0)]
    print("ready", flush=True)
    while pending:
        done, pending = ray.wait(pending, timeout=0.5)
    print(ray.get(done))


if __name__ == "__main__":
    main()
