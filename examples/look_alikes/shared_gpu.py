"""Three tasks that use half a GPU each.

Two of them share it; the third waits until one of them ends.

Expected: running (finding: starved)
Members: driver shared_gpu.py, predict
Points at: time.sleep(seconds)
"""

import os
import time

import ray


@ray.remote(num_cpus=0, num_gpus=0.5)
def predict(seconds: float) -> str:
    time.sleep(seconds)
    return "rain"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    ray.init(address, num_cpus=2 if own else None, num_gpus=1 if own else None, include_dashboard=False)
    forecasts = [predict.remote(900.0) for _ in range(3)]
    print("ready", flush=True)
    print(ray.get(forecasts))


if __name__ == "__main__":
    main()
