"""A driver that joins a thread which is working.

No task, actor or ref is involved.

Expected: running
Members: driver join_of_working_thread.py
Points at: time.sleep(seconds)
"""

import os
import threading
import time

import ray


def tidy_up(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    helper = threading.Thread(target=tidy_up, args=(900.0,), name="helper")
    helper.start()
    print("ready", flush=True)
    helper.join()


if __name__ == "__main__":
    main()
