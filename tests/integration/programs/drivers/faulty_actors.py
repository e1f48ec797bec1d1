"""Two actors wait for each other, beside actors with every fault that a worker can have.

It prints ``tick`` periodically while the cluster does new work.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import threading
import time
from typing import Any

import ray

MANY_REFS = 100_000
MANY_THREADS = 200
DEEP = 300
STORE_BYTES = 80_000_000


class Peer:
    def pid(self) -> int:
        return os.getpid()

    def call(self, other: Any) -> None:
        while True:  # the first of both calls may end
            ray.get(other.called.remote())

    def called(self) -> None:
        pass


class Faulty(Peer):
    def holds_gil_in_c(self) -> None:
        ctypes.PyDLL(None).usleep(1_000_000_000)

    def loops_in_c(self) -> None:
        while True:
            hashlib.pbkdf2_hmac("sha256", b"", b"", 50_000_000)

    def is_deep(self, never: list[Any], depth: int = DEEP) -> None:
        if depth:
            self.is_deep(never, depth - 1)
        ray.get(never)

    def has_many_threads(self, never: list[Any]) -> None:
        lock = threading.Lock()
        lock.acquire()
        for number in range(MANY_THREADS):
            threading.Thread(target=lock.acquire, name=f"waits-{number}", daemon=True).start()
        ray.get(never)

    def has_many_refs(self) -> None:
        ray.get(never_given.options(num_returns=MANY_REFS).remote())

    def has_huge_locals(self, never: list[Any]) -> None:
        data, text, items = bytes(200_000_000), "t" * 10_000_000, [None] * 10_000_000
        ray.get(never)
        print(data, text, items)

    def fills_store(self) -> None:
        """Retry periodically when there is no room."""
        kept = []
        while True:
            try:
                kept.append(ray.put(bytes(STORE_BYTES // 8)))
            except ray.exceptions.ObjectStoreFullError:
                time.sleep(10)  # each try has every worker collect its garbage

    def sleeps(self) -> None:
        time.sleep(100_000)


@ray.remote(num_cpus=0)
def never_given() -> None:
    time.sleep(100_000)


@ray.remote(num_cpus=0)
def works() -> int:
    return os.getpid()


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=STORE_BYTES)
    never = [never_given.remote()]
    peer, faulty = ray.remote(num_cpus=0)(Peer), ray.remote(num_cpus=0)(Faulty)
    left: Any = peer.options(name="left").remote()
    right: Any = peer.options(name="right").remote()
    calls: dict[str, tuple[Any, ...]] = {
        "holds_gil_in_c": (),
        "loops_in_c": (),
        "is_deep": (never,),
        "has_many_threads": (never,),
        "has_many_refs": (),
        "has_huge_locals": (never,),
        "fills_store": (),
        "sleeps": (),
    }
    actors: dict[str, Any] = {name: faulty.options(name=name).remote() for name in calls}
    pids = {name: ray.get(actor.pid.remote()) for name, actor in actors.items()}
    kept = [left.call.remote(right), right.call.remote(left)]
    kept += [getattr(actors[name], name).remote(*arguments) for name, arguments in calls.items()]
    print(json.dumps(pids), flush=True)
    print("ready", flush=True)
    while True:
        ray.get(works.remote())
        print("tick", flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
