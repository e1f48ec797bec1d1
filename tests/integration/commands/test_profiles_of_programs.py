"""``dstack profile`` of programs that run one after another, each beside its own truth, or another tool."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from dstack.analysis.stacks.profiles import times_of
from dstack.words import grouped
from tests.clusters.dstack_command import DSTACK, Result, dstack
from tests.clusters.shared_cluster import SharedCluster
from tests.integration.commands.test_profile import ENDED_S, WITHIN_POINTS, profiled
from tests.paths import PROGRAMS

pytestmark = pytest.mark.ray

PYSPY = str(Path(sys.executable).with_name("py-spy"))

# Random programs

Record = dict[str, Any]
LINES = ("first", "second", "third")
STEP_S = 0.005


def runs_at(at: float, one: Record, busy: Mapping[int, Sequence[Record]]) -> dict[str, float]:
    """What a call does at a time, as shares of its own lines; of one that has not begun, what its actor runs."""
    if at < one["from"]:
        others = [other for other in busy.get(one["actor"], ()) if other["from"] <= at < other["to"]]
        return runs_at(at, others[0], busy) if one["actor"] is not None and others else {"": 1.0}
    for step in one["steps"]:
        if step["from"] <= at < step["to"]:
            if "line" in step:
                return {LINES[step["line"]]: 1.0}
            missing = [call for call in step["calls"] if at < call["to"]]
            shares: dict[str, float] = {}
            for call in missing:
                for line, share in runs_at(at, call, busy).items():
                    shares[line] = shares.get(line, 0.0) + share / len(missing)
            return shares or {"": 1.0}
    return {"": 1.0}


def calls_in(one: Record) -> Iterator[Record]:
    for step in one["steps"]:
        for call in step.get("calls", ()):
            yield call
            yield from calls_in(call)


def truth_of(runs: Sequence[Record]) -> Counter[str]:
    """The time on each line, by the records of all runs, in steps of 5 ms."""
    spent: Counter[str] = Counter()
    for one in runs:
        busy = grouped((call["actor"], call) for call in calls_in(one) if call["actor"] is not None)
        for number in range(int((one["to"] - one["from"]) / STEP_S)):
            for line, share in runs_at(one["from"] + number * STEP_S, one, busy).items():
                spent[line] += share  # type: ignore[assignment]
    return spent


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_shares_of_random_programs_are_those_of_their_own_records(
    shared: SharedCluster, tmp_path: Path, seed: int
) -> None:
    with shared.running(PROGRAMS / "drivers/random_plans.py", [str(seed), str(tmp_path)]) as running:
        profile, spent = profiled(running, tmp_path)
    truth = truth_of(json.loads(spent))
    found: Counter[str] = Counter()
    for one in times_of(profile):
        functions = [step.function for step in one.path if step.is_frame]
        if "run" in functions:
            found[next((name for name in reversed(functions) if name in LINES), "")] += one.weight_us

    shares = {line: (100 * found[line] / found.total(), 100 * truth[line] / truth.total()) for line in ("", *LINES)}

    assert {line: both for line, both in shares.items() if abs(both[0] - both[1]) > WITHIN_POINTS} == {}


# Another tool

COMPUTING = """
import time, ray
ray.init()
def heavy(until):
    while time.perf_counter() < until:
        pass
def light(until):
    while time.perf_counter() < until:
        pass
print("ready", flush=True)
while True:
    heavy(time.perf_counter() + 0.35)
    light(time.perf_counter() + 0.15)
"""


@pytest.mark.exhaustive
def test_what_runs_on_a_cpu_is_what_pyspy_shows(shared: SharedCluster, tmp_path: Path) -> None:
    script, raw = tmp_path / "computing.py", tmp_path / "pyspy.raw"
    script.write_text(COMPUTING)
    with shared.running(script) as running:
        terms = ["--format", "raw", "--nonblocking", "--rate", "50", "--duration", "25", "--output", str(raw)]
        recording = [PYSPY, "record", *terms, "--pid", str(running.pid)]
        with subprocess.Popen(recording, stderr=subprocess.PIPE) as pyspy:
            command = [*DSTACK, "profile", "--address", running.address, "--rate", "10", "--duration", "25"]
            subprocess.run([*command, "-o", str(tmp_path / "p.folded")], env=dict(running.environment), check=True)
            pyspy.communicate(timeout=ENDED_S)
    ours, theirs = (heavy_share((tmp_path / "p.folded").read_text()), heavy_share(raw.read_text()))

    assert abs(ours - theirs) < WITHIN_POINTS, (ours, theirs)


def heavy_share(folded: str) -> float:
    """The share of ``heavy`` in folded stacks, of it and ``light``, in percent."""
    weights: Counter[str] = Counter()
    for line in folded.splitlines():
        stack, _, weight = line.rpartition(" ")
        weights.update({name: int(weight) for name in ("heavy", "light") if f";{name} (" in stack})
    return 100 * weights["heavy"] / weights.total()


# Objects and calls

FEW_BYTES = 10_000
"""The most bytes that Ray adds to a value."""


@pytest.mark.exhaustive
def test_objects_between_actors_are_counted_as_a_lower_bound(shared: SharedCluster, tmp_path: Path) -> None:
    with shared.running(PROGRAMS / "drivers/passed_objects.py", [str(tmp_path)]) as running:
        profile, spent = profiled(running, tmp_path, 6.0)
    truth = json.loads(spent)
    large = [one for one in profile.traffic if one.bytes > FEW_BYTES * one.objects]

    assert {one.maker.name for one in large} == {"Loader"}
    assert ("load", "step") in {(one.maker.method, one.asker.method) for one in large}
    for asker, size in truth["sizes"].items():
        got = [one for one in large if asker in (one.asker.name, one.asker.kind)]
        objects, sent = sum(one.objects for one in got), sum(one.bytes for one in got)
        assert 0 < objects <= truth["objects"]
        assert size * objects <= sent <= (size + FEW_BYTES) * objects
    calls = {one.by.name: one.calls for one in profile.executed}
    assert {name for name, count in calls.items() if 0 < count <= truth["calls"][name]} == {"Loader", "Trainer"}


# Hindsight

UNEQUAL = """
import time, ray
ray.init()
@ray.remote(num_cpus=0)
class Rank:
    def short(self):
        time.sleep(0.3)
    def long(self):
        time.sleep(0.9)
fast, slow = Rank.remote(), Rank.remote()
print("ready", flush=True)
while True:
    ray.get([fast.short.remote(), slow.long.remote()])
"""


@pytest.mark.exhaustive
def test_in_hindsight_a_wait_is_for_what_ended_last_and_each_is_a_step(shared: SharedCluster, tmp_path: Path) -> None:
    script = tmp_path / "unequal.py"
    script.write_text(UNEQUAL)
    with shared.running(script) as running:
        options = ("--address", running.address, "--duration", "6")
        both, last = (dstack("profile", *options, *more, environment=running.environment) for more in ((), ("--last",)))

    def share_of(done: Result, function: str) -> float:
        found = re.search(rf"([\d.]+) %  [\d.]+ s  Rank\.{function} ", done.stdout)
        return float(found[1]) if found else 0.0

    steps = re.search(r"Steps: (\d+) iterations of <module> \(unequal\.py:13\) .*: median 0\.[789] s", both.stdout)
    assert steps, both.stdout
    assert 3 <= int(steps[1]) <= 6
    assert 8 < share_of(both, "short") < 30, both.stdout
    assert share_of(last, "short") < 5, last.stdout
    assert share_of(last, "long") > 75, last.stdout
