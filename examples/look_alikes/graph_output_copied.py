"""A driver that keeps copies of all arrays that a compiled graph returns; one of its stages is slow.

Expected: running
Members: driver graph_output_copied.py
Ends in: stage Simulator.step, 1 directly, 1 in all
Points at: time.sleep(900)
"""

import os
import time
from typing import Any

import numpy as np
import ray
from ray.dag import InputNode


class Simulator:
    def step(self, number: int) -> np.ndarray[Any, Any]:
        if number == 2:
            time.sleep(900)
        return np.full(1000, number)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    simulator: Any = ray.remote(num_cpus=0)(Simulator).remote()
    with InputNode() as number:
        step = simulator.step.bind(number)
    graph = step.experimental_compile(_max_inflight_executions=2)
    history = []
    for number in range(5):
        if number == 2:
            print("ready", flush=True)
        state = ray.get(graph.execute(number), timeout=-1)
        history.append(state.copy())
    print(len(history))


if __name__ == "__main__":
    main()
