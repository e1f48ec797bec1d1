"""Tasks whose workers take long to start, because a setup hook loads a large model (as in ray#40131).

Ray has granted the resources and started the worker processes. No task runs before the hook has returned.

Expected: running
Members: driver worker_starts_slowly.py, translate
Points at: time.sleep(seconds)
Next step: The worker process is still starting at worker_starts_slowly.py
"""

import os
import time

import ray


def load_model() -> None:
    read_weights(900.0)


def read_weights(seconds: float) -> None:
    time.sleep(seconds)


@ray.remote
def translate(page: int) -> str:
    return f"page {page}, translated"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    hook = {"worker_process_setup_hook": load_model}
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False, runtime_env=hook)
    pages = [translate.remote(page) for page in range(3)]
    print("ready", flush=True)
    print(ray.get(pages))


if __name__ == "__main__":
    main()
