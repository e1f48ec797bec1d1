"""A placement group with one bundle on each of two nodes: an actor that computes in one, an idle one in the other."""

import json
import os

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import dstack


class Placed:
    def pid(self, stage: str) -> int:
        dstack.label(stage=stage)
        return os.getpid()

    def compute(self) -> None:
        while True:
            pass


ray.init()
group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD", name="apart")
ray.get(group.ready())
places = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle) for bundle in range(2)]
actors = [ray.remote(num_cpus=1, scheduling_strategy=place)(Placed).remote() for place in places]
busy, idle = ray.get([actor.pid.remote(stage) for actor, stage in zip(actors, ("burn", "rest"), strict=True)])
result = actors[0].compute.remote()
print("expected", json.dumps({"busy": busy, "idle": idle}), flush=True)
print("ready", flush=True)
ray.get(result)
