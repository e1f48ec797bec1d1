"""A driver that does other things while three executions of a compiled graph are in progress.

The first execution is slow. So is another call on one of the actors, which the driver waits for.

Expected: running
Members: driver graph_executed_ahead.py
Ends in: Preprocess.report, 1 directly, 1 in all
"""

import os
import time
from typing import Any

import ray
from ray.dag import InputNode


class Preprocess:
    def run(self, number: int) -> int:
        return number

    def report(self) -> None:
        time.sleep(900)


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
    results = [graph.execute(number) for number in (1, 2, 3)]
    report = first.report.remote()
    print("ready", flush=True)
    ray.get(report)
    print([ray.get(result, timeout=-1) for result in results])


if __name__ == "__main__":
    main()
