"""A wait for the first of two results, one of which never becomes available.

The caller is in a cycle with the friend, which calls back. But the caller needs only one result, and the library will
give one, though slowly.

Expected: running
Members: driver other_branch_can_give.py, Caller.ask
Points at: time.sleep(seconds)
"""

import os
import time
from typing import Any

import ray


class Caller:
    def question(self) -> str:
        return "how deep is the sea?"

    def ask(self, friend: Any, seconds: float) -> str:
        me = ray.get_runtime_context().current_actor
        first, _ = ray.wait([friend.guess.remote(me), look_up.remote(seconds)], num_returns=1)
        return ray.get(first[0])


class Friend:
    def guess(self, caller: Any) -> str:
        question: str = ray.get(caller.question.remote())
        return f"no idea {question}"


@ray.remote
def look_up(seconds: float) -> str:
    time.sleep(seconds)
    return "10,935 m"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    caller: Any = ray.remote(Caller).options(name="caller").remote()
    friend: Any = ray.remote(Friend).options(name="friend").remote()
    ray.get([caller.__ray_ready__.remote(), friend.__ray_ready__.remote()])
    answer = caller.ask.remote(friend, 900.0)
    print("ready", flush=True)
    print(ray.get(answer))


if __name__ == "__main__":
    main()
