"""A driver whose items have passed through known pipelines, and whose tasks now wait for a slot that another node has.

Needs a cluster of two nodes, each with a resource ``slot`` of 1; one has the resource ``first``, the other ``second``.
Writes the ids of the tasks of each item, step by step, as JSON to the file that is its argument.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import ray

ITEMS = 40
FAST_S, SLOW_S = 0.01, 0.06


@ray.remote
def load(item: Any, lasts_s: float) -> Any:
    time.sleep(lasts_s)
    return item


@ray.remote
def resize(item: Any, lasts_s: float) -> Any:
    time.sleep(lasts_s)
    return item


@ray.remote
def save(item: Any, lasts_s: float) -> Any:
    time.sleep(lasts_s)
    return item


@ray.remote(num_cpus=0)
class Reader:
    def read(self, item: Any) -> Any:
        time.sleep(FAST_S)
        return item


@ray.remote(num_cpus=0)
class Model:
    def step(self, item: Any) -> Any:
        time.sleep(SLOW_S)
        return item


@ray.remote(num_cpus=0)
class Writer:
    def write(self, item: Any) -> Any:
        time.sleep(FAST_S)
        return item


@ray.remote(num_cpus=0, resources={"slot": 1, "first": 0.01})
def use_slot() -> None:
    time.sleep(900.0)


def through_tasks(steps: list[Any], chooser: random.Random) -> list[Any]:
    """One item through the steps, submitted at once: the ref of each step."""
    refs: list[Any] = []
    for step in steps:
        refs.append(step.remote(refs[-1] if refs else 0, chooser.uniform(0.005, 0.06)))
    return refs


def through_actors(stages: list[Any]) -> list[Any]:
    reader, model, writer = stages
    read = reader.read.remote(0)
    stepped = model.step.remote(read)
    return [read, stepped, writer.write.remote(stepped)]


def main() -> None:
    ray.init(os.environ["RAY_ADDRESS"], include_dashboard=False)
    chooser = random.Random(1)
    steps: list[Any] = [load, resize, save]
    tasks = [through_tasks(steps, chooser) for _ in range(ITEMS)]
    ray.get([refs[-1] for refs in tasks])
    places = ({"first": 0.01}, {"second": 0.01}, {"second": 0.01})
    kinds: list[Any] = [Reader, Model, Writer]
    stages = [kind.options(resources=place).remote() for kind, place in zip(kinds, places, strict=True)]
    calls = [through_actors(stages) for _ in range(ITEMS)]
    ray.get([refs[-1] for refs in calls])
    ids = [[ref.task_id().hex() for ref in refs] for refs in (*tasks, *calls)]
    Path(sys.argv[1]).write_text(json.dumps(ids))
    waits = [use_slot.remote() for _ in range(3)]
    print("ready", flush=True)
    ray.get(waits)


if __name__ == "__main__":
    main()
