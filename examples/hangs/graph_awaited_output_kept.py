"""A coroutine that keeps all arrays that it awaits from a compiled graph.

The arrays are not copied out of the channel, which has room for two of them. So the stage waits for room to write the
third, and the coroutine waits for the third.

Expected: deadlock
Members: driver graph_awaited_output_kept.py, stage Simulator.step
Points at: history.append(await state)
Next step: Copy the arrays that are kept in asyncio task main of driver graph_awaited_output_kept.py
"""

import asyncio
import os
from typing import Any

import numpy as np
import ray
from ray.dag import InputNode


class Simulator:
    def step(self, number: int) -> np.ndarray[Any, Any]:
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
        history.append(await state)
    print(len(history))


if __name__ == "__main__":
    asyncio.run(main())
