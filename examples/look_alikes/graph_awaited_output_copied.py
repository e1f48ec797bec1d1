"""A coroutine that keeps copies of all arrays that it awaits from a compiled graph with a slow stage.

Expected: running
Members: driver graph_awaited_output_copied.py
Points at: time.sleep(900)
"""

import asyncio
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


async def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    simulator: Any = ray.remote(num_cpus=0)(Simulator).remote()
    with InputNode() as number:
        step = simulator.step.bind(number)
    graph = step.experimental_compile(enable_asyncio=True, _max_inflight_executions=2)
    history = []
    for number in range(5):
        if number == 2:
            print("ready", flush=True)
        state = await graph.execute_async(number)
        history.append((await state).copy())
    print(len(history))


if __name__ == "__main__":
    asyncio.run(main())
