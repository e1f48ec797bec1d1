"""A driver that keeps all arrays that a compiled graph returns.

The arrays are not copied out of the channel, which has room for two of them. So the stage waits for room to write the
third, and the driver waits for the third.

Expected: deadlock
Members: driver graph_output_kept.py, stage Simulator.step
Points at: state = ray.get(graph.execute(number), timeout=-1)
Next step: Copy the arrays that are kept in driver graph_output_kept.py from a compiled graph (array.copy())
"""

import os
from typing import Any

import numpy as np
import ray
from ray.dag import InputNode


class Simulator:
    def step(self, number: int) -> np.ndarray[Any, Any]:
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
        history.append(state)
    print(len(history))


if __name__ == "__main__":
    main()
