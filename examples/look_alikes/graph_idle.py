"""An idle compiled graph: its driver waits for something else, its stages wait for input.

Expected: running
Outside: driver in threading.Event.wait
Next step: driver graph_idle.py waits in threading.Event.wait (graph_idle.py)
"""

import os
import threading
from typing import Any

import ray
from ray.dag import InputNode


class Preprocess:
    def run(self, number: int) -> int:
        return number


class Model:
    def run(self, number: int) -> int:
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
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
