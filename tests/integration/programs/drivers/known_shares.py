"""Programs that know where their time goes; each is a function, and all run in turn until a file ``end`` is there.

Printed at the end, as JSON: the seconds of each ``PROGRAM:FUNCTION``, measured by the programs themselves. A wait for
several things is shared equally among those that are still missing.

    known_shares.py FOLDER
"""

import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

Span = tuple[str, float, float]
"""A function, and when it began and ended."""
spent: defaultdict[str, float] = defaultdict(float)


def slept(name: str, seconds: float) -> Span:
    began = time.time()
    time.sleep(seconds)
    return name, began, time.time()


@ray.remote(num_cpus=0)
def load(seconds: float, *_: object) -> Span:
    return slept("load", seconds)


@ray.remote(num_cpus=0)
def train(seconds: float, *_: object) -> Span:
    return slept("train", seconds)


@ray.remote(num_cpus=0)
def store(seconds: float, *_: object) -> Span:
    return slept("store", seconds)


@ray.remote(num_cpus=0)
def compute(seconds: float) -> Span:
    began = time.time()
    while time.time() < began + seconds:
        pass
    return "compute", began, time.time()


@ray.remote(num_cpus=0, resources={"licence": 1})
def licensed(seconds: float) -> Span:
    return slept("licensed", seconds)


@ray.remote(num_cpus=0)
def outer(seconds: float) -> list[Span]:
    own = slept("outer", seconds)
    inner: Span = ray.get(train.remote(2 * seconds))
    return [own, inner]


class Rank:
    def step(self, seconds: float) -> Span:
        return slept("step", seconds)


class Async:
    async def respond(self, seconds: float) -> list[Span]:
        began = time.time()
        await asyncio.sleep(seconds)
        own = ("respond", began, time.time())
        return [own, await store.remote(seconds)]


def note(program: str, spans: Sequence[Span]) -> None:
    for name, began, ended in spans:
        spent[f"{program}:{name}"] += ended - began


def note_shared(program: str, began: float, spans: Sequence[Span]) -> None:
    """Share the time from ``began`` on: each moment belongs equally to those that have not ended."""
    at = began
    for index, (_, _, ended) in enumerate(sorted(spans, key=lambda span: span[2])):
        missing = sorted(spans, key=lambda span: span[2])[index:]
        for name, _, _ in missing:
            spent[f"{program}:{name}"] += max(0.0, ended - at) / len(missing)
        at = max(at, ended)


def sequential() -> None:
    note("sequential", [ray.get(load.remote(0.3)), ray.get(compute.remote(0.4))])


def parallel() -> None:
    began = time.time()
    note_shared("parallel", began, ray.get([load.remote(0.2), train.remote(0.8)]))


def pipeline() -> None:
    first = load.remote(0.2)
    second = train.remote(0.4, first)
    note("pipeline", ray.get([first, second, store.remote(0.2, second)][-1:]) + ray.get([first, second]))


def nested() -> None:
    note("nested", ray.get(outer.remote(0.2)))


def queued() -> None:
    note("queued", ray.get([ranks[0].step.remote(0.3), ranks[0].step.remote(0.3)]))


def skewed() -> None:
    began = time.time()
    note_shared("skewed", began, ray.get([rank.step.remote(0.2 * n) for n, rank in enumerate(ranks, 1)]))


def scarce() -> None:
    note("scarce", ray.get([licensed.remote(0.3), licensed.remote(0.3)]))


def responding() -> None:
    note("responding", ray.get(replica.respond.remote(0.3)))


def computing() -> None:
    began = time.time()
    while time.time() < began + 0.5:
        pass
    note("computing", [("computing", began, time.time())])


ray.init()
ranks: list[Any] = [ray.remote(num_cpus=0)(Rank).remote() for _ in range(3)]
replica: Any = ray.remote(num_cpus=0)(Async).remote()
PROGRAMS = (sequential, parallel, pipeline, nested, queued, skewed, scarce, responding, computing)
for program in PROGRAMS:
    program()
spent.clear()
folder = Path(sys.argv[1])
print("ready", flush=True)
while not (folder / "begin").exists():
    time.sleep(0.05)
while not (folder / "end").exists():
    for program in PROGRAMS:
        program()
print("spent", json.dumps(spent), flush=True)
while True:
    time.sleep(1)
