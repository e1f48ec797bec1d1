"""A driver that works long on each row of a Data pipeline, which is under backpressure meanwhile.

Expected: running (finding: polling)
Points at: time.sleep(20.0)
Needs: ray[data]
"""

import os
import time
from typing import Any

import ray


def double(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"] * 2}


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    rows = ray.data.range(90, override_num_blocks=90).map(double)
    print("ready", flush=True)
    for row in rows.iter_rows():
        time.sleep(20.0)
        print(row)


if __name__ == "__main__":
    main()
