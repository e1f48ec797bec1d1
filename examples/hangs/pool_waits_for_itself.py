"""A thread pool whose only thread waits for work that is queued in the same pool.

No other process is involved: `chapter` runs on the only thread of the pool and waits for `page`, which would have to
run on that thread too.

Expected: deadlock
Members: thread "writer_0"
Points at: return 10 * pool.submit(page).result()
Next step: Give the executor of thread "writer_0" another thread (max_workers), or use another executor
"""

import os
from concurrent.futures import ThreadPoolExecutor

import ray


def page() -> int:
    return 300


def chapter(pool: ThreadPoolExecutor) -> int:
    return 10 * pool.submit(page).result()


@ray.remote
def write() -> int:
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="writer") as pool:
        return pool.submit(chapter, pool).result()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    words = write.remote()
    print("ready", flush=True)
    print(ray.get(words))


if __name__ == "__main__":
    main()
