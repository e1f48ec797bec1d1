"""A driver that executes a compiled graph more often than its channels hold values, and takes no result before.

A channel between two nodes holds one value. The stage waits until its first result is taken, so it reads no further
input, and the driver waits in `execute` for that, until a timeout of Ray's own ends it with an error.

Expected: deadlock
Members: driver graph_executed_without_get.py, stage Model.run
Points at: results = [graph.execute(number) for number in range(8)]
Needs: two nodes
"""

import os
from typing import Any

import ray
from ray.dag import InputNode
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class Model:
    def run(self, number: int) -> int:
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
    results = [graph.execute(number) for number in range(8)]
    print([ray.get(result, timeout=-1) for result in results])


if __name__ == "__main__":
    main()
