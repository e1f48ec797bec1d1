"""A stage of a compiled graph that calls the actor which executes the graph.

`Pipeline.infer` executes the graph and waits for its result. The only stage of the graph calls `Pipeline.factor`, which
is queued on that actor behind `infer`.

Expected: deadlock
Members: Pipeline.infer, stage Scaler.scale, Pipeline.factor
Points at: factor: float = ray.get(self.pipeline.factor.remote())
Next step: Raise max_concurrency of Pipeline to 2 (now 1)
"""

import os
from typing import Any

import ray
from ray.dag import InputNode


class Scaler:
    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def scale(self, value: float) -> float:
        if not value:
            return value
        factor: float = ray.get(self.pipeline.factor.remote())
        return value * factor


class Pipeline:
    def compile(self, me: Any) -> float:
        scaler: Any = ray.remote(num_cpus=0)(Scaler).remote(me)
        with InputNode() as value:
            graph = scaler.scale.bind(value)
        self.graph = graph.experimental_compile()
        return self.infer(0.0)

    def infer(self, value: float) -> float:
        result: float = ray.get(self.graph.execute(value), timeout=-1)
        return result

    def factor(self) -> float:
        return 3.0


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    pipeline: Any = ray.remote(num_cpus=0)(Pipeline).options(name="pipeline").remote()
    ray.get(pipeline.compile.remote(pipeline))
    result = pipeline.infer.remote(2.0)
    print("ready", flush=True)
    print(ray.get(result))


if __name__ == "__main__":
    main()
