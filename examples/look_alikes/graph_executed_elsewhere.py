"""A driver that executes a compiled graph on another node, and takes each result before the next execution.

The stage takes its time.

Expected: blocked
Members: driver graph_executed_elsewhere.py
Ends in: stage Model.run, 1 directly, 1 in all
Points at: time.sleep(900)
Needs: two nodes
"""

import os
import time
from typing import Any

import ray
from ray.dag import InputNode
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class Model:
    def run(self, number: int) -> int:
        if number:
            time.sleep(900)
        return number


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    here = ray.get_runtime_context().get_node_id()
    elsewhere = next(node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here)
    there = NodeAffinitySchedulingStrategy(elsewhere, soft=False)
    model: Any = ray.remote(num_cpus=0)(Model).options(scheduling_strategy=there).remote()
    with InputNode() as number:
        result = model.run.bind(number)
    graph = result.experimental_compile(_submit_timeout=900)
    print(ray.get(graph.execute(0), timeout=-1))
    print("ready", flush=True)
    print([ray.get(graph.execute(number), timeout=-1) for number in range(8)])


if __name__ == "__main__":
    main()
