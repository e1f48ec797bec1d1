"""One actor in two compiled graphs.

An actor runs the loop of one graph at a time. The loop of the second graph is queued behind that of the first, which
waits for the driver to execute its graph again. The driver waits for the second graph.

Expected: deadlock
Members: driver actor_in_two_graphs.py, Model.__ray_call__, stage Model.embed
Points at: print(ray.get(result, timeout=-1))
Next step: Give each compiled graph actors of its own, or call teardown() of one before compiling the next
"""

import os
from typing import Any

import ray
from ray.dag import InputNode


class Model:
    def embed(self, text: str) -> int:
        return len(text)

    def rank(self, text: str) -> int:
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
    rank = ranking.experimental_compile()
    result = rank.execute("b")
    print("ready", flush=True)
    print(ray.get(result, timeout=-1))


if __name__ == "__main__":
    main()
