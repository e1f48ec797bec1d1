"""A driver that polls for a slow result.

Each `ray.get` has a timeout of half a second, so the driver can proceed at any time.

Expected: running (finding: polling)
Members: driver polling_get.py
Points at: time.sleep(seconds)
"""

import os
import time

import ray
from ray.exceptions import GetTimeoutError


@ray.remote
def simulate(seconds: float) -> str:
    time.sleep(seconds)
    return "simulated"


def patiently(ref: "ray.ObjectRef[str]") -> str:
    while True:
        try:
            return ray.get(ref, timeout=0.5)
        except GetTimeoutError:
            continue


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    result = simulate.remote(900.0)
    print("ready", flush=True)
    print(patiently(result))


if __name__ == "__main__":
    main()
