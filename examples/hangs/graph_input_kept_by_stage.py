"""A stage of a compiled graph that keeps all its inputs in a list.

The arrays are not copied out of the channel between the stages, which has room for three of them. So the first stage
waits for room to write the fourth, the second stage waits for the fourth, and the driver for the result.

Expected: deadlock
Members: driver graph_input_kept_by_stage.py, stage Replay.add, stage Simulator.step
Points at: print(ray.get(graph.execute(number), timeout=-1))
Next step: Copy the arrays that are kept from a compiled graph (array.copy()), or drop them before the next execute
"""

import os
from typing import Any

import numpy as np
import ray
from ray.dag import InputNode


class Replay:
    def __init__(self) -> None:
        self.kept: list[np.ndarray[Any, Any]] = []

    def add(self, state: np.ndarray[Any, Any]) -> int:
        self.kept.append(state)
        return len(self.kept)


class Simulator:
    def step(self, number: int) -> np.ndarray[Any, Any]:
        return np.full(1000, number)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    simulator: Any = ray.remote(num_cpus=0)(Simulator).remote()
    replay: Any = ray.remote(num_cpus=0)(Replay).remote()
    with InputNode() as number:
        count = replay.add.bind(simulator.step.bind(number))
    graph = count.experimental_compile(_max_inflight_executions=3)
    for number in range(10):
        if number == 3:
            print("ready", flush=True)
        print(ray.get(graph.execute(number), timeout=-1))


if __name__ == "__main__":
    main()
