"""A stage of a compiled graph that keeps all inputs from the driver.

The arrays are not copied out of the channel, which has room for three of them. So the driver waits in `execute`, until
a timeout of Ray ends the wait with an error.

Expected: deadlock
Members: driver graph_execute_without_room.py, stage Replay.add
Points at: result = graph.execute(np.full(1000, number))
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


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    replay: Any = ray.remote(num_cpus=0)(Replay).remote()
    with InputNode() as state:
        count = replay.add.bind(state)
    graph = count.experimental_compile(_max_inflight_executions=3, _submit_timeout=900)
    for number in range(10):
        if number == 3:
            print("ready", flush=True)
        result = graph.execute(np.full(1000, number))
        print(ray.get(result, timeout=-1))


if __name__ == "__main__":
    main()
