"""A job that waits for an actor of another job, which is working.

Each of two programs has an actor. The sales ask the stock, which counts and asks no other actor.

Expected: running
Members: driver across_jobs.py, Sales.sold
Points at: time.sleep(seconds)
"""

import os
import subprocess
import sys
import time
from typing import Any

import ray

NAMESPACE = "across jobs"


class Stock:
    def left(self, seconds: float) -> int:
        time.sleep(seconds)
        return 70


class Sales:
    def sold(self, seconds: float) -> int:
        stock = ray.get_actor("stock")
        left: int = ray.get(stock.left.remote(seconds))
        return 100 - left


def sell() -> None:
    sales: Any = ray.remote(Sales).options(name="sales").remote()
    ray.get(sales.__ray_ready__.remote())
    sold = sales.sold.remote(900.0)
    print("ready", flush=True)
    print(ray.get(sold))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    cpus = 2 if address == "local" else None
    ray.init(address, num_cpus=cpus, namespace=NAMESPACE, include_dashboard=False)
    if sys.argv[1:] == ["sales"]:
        sell()
        return
    stock: Any = ray.remote(Stock).options(name="stock").remote()
    ray.get(stock.__ray_ready__.remote())
    home = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    subprocess.run([sys.executable, __file__, "sales"], env={**os.environ, **home}, check=True)


if __name__ == "__main__":
    main()
