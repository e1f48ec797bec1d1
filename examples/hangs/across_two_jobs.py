"""Two jobs that wait for each other.

Each of two programs has an actor, and they find each other by name. The stock asks the sales how much was sold, and the
sales ask the stock how much is left. Neither program is wrong on its own.

Expected: deadlock
Members: Stock.left, Sales.sold
Points at: sold: int = ray.get(sales.sold.remote())
Next step: Return the ObjectRef instead of ray.get in Sales.sold
"""

import os
import subprocess
import sys
from typing import Any

import ray

NAMESPACE = "across two jobs"


class Stock:
    def left(self) -> int:
        sales = ray.get_actor("sales")
        sold: int = ray.get(sales.sold.remote())
        return 100 - sold


class Sales:
    def sold(self) -> int:
        stock = ray.get_actor("stock")
        left: int = ray.get(stock.left.remote())
        return 100 - left


def sell() -> None:
    sales: Any = ray.remote(Sales).options(name="sales").remote()
    ray.get(sales.__ray_ready__.remote())
    sold = sales.sold.remote()
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
