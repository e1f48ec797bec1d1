"""A random tree of tasks and actor calls that sleep and wait for each other, run again and again.

Each step of a task sleeps at one of several lines, or waits for calls that it makes; calls of actors only sleep, and
queue. Printed at the end, as JSON: a list of the runs, each the record of the driver's plan.

    random_plans.py SEED FOLDER
"""

import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import ray

Plan = list[Any]
"""Steps: seconds to sleep with the number of the line, or calls to wait for."""


def plan_of(random: Random, depth: int) -> Plan:
    steps: Plan = []
    for _ in range(random.randint(1, 3)):
        if depth and random.random() < 0.7:
            calls = [call_of(random, depth - 1) for _ in range(random.randint(1, 3))]
            steps.append({"calls": calls})
        else:
            steps.append({"line": random.randrange(3), "seconds": random.uniform(0.1, 0.5)})
    return steps


def call_of(random: Random, depth: int) -> dict[str, Any]:
    if random.random() < 0.4:
        return {
            "actor": random.randrange(2),
            "plan": [{"line": random.randrange(3), "seconds": random.uniform(0.1, 0.4)}],
        }
    return {"actor": None, "plan": plan_of(random, depth)}


def first(seconds: float) -> None:
    time.sleep(seconds)


def second(seconds: float) -> None:
    time.sleep(seconds)


def third(seconds: float) -> None:
    time.sleep(seconds)


LINES = (first, second, third)


def run(plan: Plan, actors: list[Any]) -> dict[str, Any]:
    """Follow a plan; returns when each step began and ended, and the records of its calls."""
    began, record = time.time(), []
    for step in plan:
        at = time.time()
        if "line" in step:
            LINES[step["line"]](step["seconds"])
            record.append({"line": step["line"], "from": at, "to": time.time()})
        else:
            refs = [begun(call, actors) for call in step["calls"]]
            records = ray.get(refs)
            for call, one in zip(step["calls"], records, strict=True):
                one["actor"] = call["actor"]
            record.append({"calls": records, "from": at, "to": time.time()})
    return {"from": began, "to": time.time(), "steps": record}


def begun(call: dict[str, Any], actors: list[Any]) -> Any:
    if call["actor"] is None:
        return task.remote(call["plan"], actors)
    return actors[call["actor"]].work.remote(call["plan"])


@ray.remote(num_cpus=0)
def task(plan: Plan, actors: list[Any]) -> dict[str, Any]:
    return run(plan, actors)


class Clerk:
    def work(self, plan: Plan) -> dict[str, Any]:
        return run(plan, [])


ray.init()
random = Random(int(sys.argv[1]))
folder = Path(sys.argv[2])
actors: list[Any] = [ray.remote(num_cpus=0)(Clerk).remote() for _ in range(2)]
plan = [*plan_of(random, 3), {"calls": [call_of(random, 2) for _ in range(2)]}]
run(plan, actors)
print("ready", flush=True)
while not (folder / "begin").exists():
    time.sleep(0.05)
runs = []
while not (folder / "end").exists():
    runs.append(run(plan, actors))
print("spent", json.dumps(runs), flush=True)
while True:
    time.sleep(1)
