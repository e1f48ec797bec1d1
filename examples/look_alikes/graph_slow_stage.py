"""A compiled graph with one slow stage.

Expected: running
Members: driver graph_slow_stage.py, stage Postprocess.run
Ends in: stage Model.run, 1 directly, 2 in all
Points at: time.sleep(900)
"""

import os
import time
from typing import Any

import ray
from ray.dag import InputNode


class Preprocess:
    def run(self, number: int) -> int:
        return number


class Model:
    def run(self, number: int) -> int:
        if number:
            time.sleep(900)
        return number


class Postprocess:
    def run(self, number: int) -> int:
        return number


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    first, second, third = (ray.remote(num_cpus=0)(stage).remote() for stage in (Preprocess, Model, Postprocess))
    with InputNode() as number:
        number_out: Any = third.run.bind(second.run.bind(first.run.bind(number)))
    graph = number_out.experimental_compile()
    print(ray.get(graph.execute(0), timeout=-1))
    result = graph.execute(1)
    print("ready", flush=True)
    print(ray.get(result, timeout=-1))


if __name__ == "__main__":
    main()
