"""One actor in two compiled graphs, one after the other.

The first graph was torn down, so the actor runs the loop of the second one, whose stage is slow.

Expected: running
Members: driver graph_after_teardown.py
Ends in: stage Model.rank, 1 directly, 1 in all
Points at: time.sleep(900)
"""

import os
import time
from typing import Any

import ray
from ray.dag import InputNode


class Model:
    def embed(self, text: str) -> int:
        return len(text)

    def rank(self, text: str) -> int:
        time.sleep(900)
        return len(text)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    model: Any = ray.remote(num_cpus=0)(Model).remote()
    with InputNode() as text:
        embedding = model.embed.bind(text)
    with InputNode() as text:
        ranking = model.rank.bind(text)
    embed = embedding.experimental_compile()
    print(ray.get(embed.execute("a"), timeout=-1))
    embed.teardown()
    rank = ranking.experimental_compile()
    result = rank.execute("b")
    print("ready", flush=True)
    print(ray.get(result, timeout=-1))


if __name__ == "__main__":
    main()
