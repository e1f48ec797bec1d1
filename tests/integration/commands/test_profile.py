"""``dstack profile`` on a real cluster: where the time of programs goes that know it themselves; formats and errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from typing import Any

import pytest

from dstack.analysis.stacks.hot_lines import hot_files
from dstack.analysis.stacks.profiles import times_of
from dstack.files.sampled_file import PROFILES
from dstack.model.profile import PathStep, Profile
from dstack.words import grouped
from tests.clusters.dstack_command import DSTACK, Result, dstack
from tests.clusters.ray_clusters import Example
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import reads_memory, wait_until

pytestmark = pytest.mark.ray

PYSPY = str(Path(sys.executable).with_name("py-spy"))
RUNS = frozenset({"load", "train", "store", "compute", "licensed", "outer", "step", "respond", "computing"})
MEASURED_S = 40.0
WITHIN_POINTS = 5.0
ENDED_S = 240.0
Running = tuple[Example, Path]


@pytest.fixture(scope="module")
def program(shared: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("known_shares")
    with shared.running(PROGRAMS / "drivers/known_shares.py", [str(folder)]) as running:
        yield running, folder


@contextmanager
def ended(command: Sequence[str], running: Example, stdout: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A command that is killed at the end."""
    environment = dict(running.environment)
    with subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment) as child:
        try:
            yield child
        finally:
            child.kill()


def spent_in(running: Example) -> str | None:
    lines = (line for line in running.log.read_text().splitlines(keepends=True) if line.startswith("spent "))
    return next((line.removeprefix("spent ") for line in lines if line.endswith("\n")), None)


def profiled(running: Example, folder: Path, seconds: float = MEASURED_S) -> tuple[Profile, str]:
    """A profile of programs from their begin to their end, and what they printed about it."""
    command = [*DSTACK, "profile", "--address", running.address, "--rate", "10", "-o", str(folder / "p.json")]
    with ended(command, running) as child:
        wait_until(lambda: reads_memory(child.pid), deadline_s=60, what=lambda: "a profile")
        (folder / "begin").touch()
        time.sleep(seconds)
        (folder / "end").touch()
        spent = wait_until(lambda: spent_in(running), deadline_s=120, what=running.output)
        child.send_signal(SIGINT)
        _, err = child.communicate(timeout=ENDED_S)
    assert child.returncode == 0, err
    return PROFILES.load(folder / "p.json"), spent


@pytest.fixture(scope="module")
def measured(program: Running) -> tuple[Profile, dict[str, float]]:
    """A profile of the programs, and the seconds that they measured themselves."""
    profile, spent = profiled(*program)
    return profile, json.loads(spent)


def label_of(path: tuple[PathStep, ...]) -> str:
    """``PROGRAM:FUNCTION``: which program the driver is in, and the innermost of the known functions."""
    functions = [step.function for step in path if step.is_frame]
    known = [name.rpartition(".")[2] for name in functions if name.rpartition(".")[2] in RUNS]
    return f"{functions[1]}:{known[-1] if known else ''}" if len(functions) > 1 else ""


def test_shares_are_those_that_programs_measure_themselves(measured: tuple[Profile, dict[str, float]]) -> None:
    profile, spent = measured
    found: Counter[str] = Counter()
    for one in times_of(profile):
        found[label_of(one.path)] += one.weight_us
    del found[""]
    whole, truly = found.total(), sum(spent.values())

    assert profile.coverage.rounds > 4 * MEASURED_S
    assert {name.partition(":")[0] for name in found} == {name.partition(":")[0] for name in spent}
    shares = {name: (100 * found[name] / whole, 100 * seconds / truly) for name, seconds in spent.items()}
    assert {name: both for name, both in shares.items() if abs(both[0] - both[1]) > WITHIN_POINTS} == {}
    overhead = sum(weight for name, weight in found.items() if name.endswith(":"))
    assert overhead < 0.15 * whole, found


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
        with ended([PYSPY, "record", *terms, "--pid", str(running.pid)], running) as pyspy:
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


def test_objects_between_actors_are_counted_as_a_lower_bound(shared: SharedCluster, tmp_path: Path) -> None:
    with shared.running(PROGRAMS / "drivers/passed_objects.py", [str(tmp_path)]) as running:
        profile, spent = profiled(running, tmp_path, 10.0)
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


# Forms, roots and signals


def profile(program: Running, *options: str) -> Result:
    running, _ = program
    return dstack("profile", "--address", running.address, *options, environment=running.environment)


def test_the_heaviest_chains_are_printed(program: Running) -> None:
    done = profile(program, "--duration", "2")

    assert done.returncode == 0, done.stderr
    assert re.match(r"2\.\d s of driver known_shares\.py, in \d+ samples, ", done.stdout)
    assert re.search(r"^ 1\. +\d+\.\d %  .+\n    from driver known_shares\.py", done.stdout, re.MULTILINE)


def test_each_suffix_is_a_format(program: Running) -> None:
    _, folder = program
    outputs = [folder / f"again{suffix}" for suffix in (".folded", ".speedscope.json", ".html", ".json.gz")]
    for output in outputs:
        done = profile(program, "--duration", "1", "-o", str(output))
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert "Saved. " in done.stderr
    folded, scope, page, compressed = outputs

    assert folded.read_text().startswith("driver known_shares.py;<module> (")
    assert json.loads(scope.read_text())["profiles"][0]["unit"] == "microseconds"
    assert "driver known_shares.py" in page.read_text()
    assert PROFILES.load(compressed).roots == ("driver known_shares.py",)


def test_an_actor_is_followed(program: Running) -> None:
    of_class = profile(program, "--duration", "1", "--of", "Async")
    unknown = profile(program, "--duration", "1", "--of", "Other")

    assert "1. 100.0 %  1.0 s  idle: no call to run\n    from actor Async" in of_class.stdout
    assert unknown.returncode == 2
    assert "There is no actor, class or rank called Other." in unknown.stderr


@pytest.mark.parametrize(("number", "code"), [(SIGINT, 0), (SIGTERM, 128 + SIGTERM)])
def test_a_signal_ends_the_profile_and_keeps_it(program: Running, number: Signals, code: int) -> None:
    running, _ = program
    with ended([*DSTACK, "profile", "--address", running.address], running, stdout=subprocess.PIPE) as child:
        wait_until(lambda: reads_memory(child.pid), deadline_s=60, what=lambda: "a profile")
        child.send_signal(number)
        out, err = child.communicate(timeout=ENDED_S)

    assert child.returncode == code, err
    assert "1. 100.0 %" in out


UNEQUAL = """
import time, ray
ray.init()
@ray.remote(num_cpus=0)
class Rank:
    def short(self):
        time.sleep(0.4)
    def long(self):
        time.sleep(1.2)
fast, slow = Rank.remote(), Rank.remote()
print("ready", flush=True)
while True:
    ray.get([fast.short.remote(), slow.long.remote()])
"""


def test_in_hindsight_a_wait_is_for_what_ended_last(shared: SharedCluster, tmp_path: Path) -> None:
    script = tmp_path / "unequal.py"
    script.write_text(UNEQUAL)
    with shared.running(script) as running:
        options = ("--address", running.address, "--duration", "10")
        both, last = (dstack("profile", *options, *more, environment=running.environment) for more in ((), ("--last",)))

    def share_of(done: Result, function: str) -> float:
        found = re.search(rf"([\d.]+) %  [\d.]+ s  Rank\.{function} ", done.stdout)
        return float(found[1]) if found else 0.0

    assert 8 < share_of(both, "short") < 30, both.stdout
    assert share_of(last, "short") < 5, last.stdout
    assert share_of(last, "long") > 75, last.stdout


def test_a_program_is_run_and_profiled_to_its_end(program: Running, tmp_path: Path) -> None:
    running, _ = program
    script = tmp_path / "train.py"
    script.write_text(
        "import ray, time\nray.init()\n@ray.remote(num_cpus=0)\ndef step():\n    time.sleep(4)\n"
        "ray.get(step.remote())\nprint('done')\nraise SystemExit(7)\n"
    )
    environment = {**running.environment, "RAY_ADDRESS": running.address}
    done = dstack("profile", "--", sys.executable, str(script), environment=environment)

    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("done\n")
    assert re.search(
        r"step \(train\.py:5\) → time\.sleep\n    from driver train\.py → <module> \(train\.py:6\)", done.stdout
    )


def test_a_program_without_a_cluster_has_no_profile(tmp_path: Path) -> None:
    done = dstack("profile", "--", sys.executable, "-c", "print('nothing')")

    assert (done.returncode, done.stdout) == (3, "nothing\n")
    assert "The program ended before it used a cluster." in done.stderr


def test_the_source_of_its_frames_is_in_the_profile(measured: tuple[Profile, dict[str, float]]) -> None:
    profile, _ = measured
    known = PROGRAMS / "drivers/known_shares.py"
    lines = known.read_text().splitlines()
    places = {(step.file, step.line) for step in profile.steps if step.file == str(known)}

    assert places
    assert {lines[line - 1] for _, line in places} == {profile.sources[file][line] for file, line in places}
    (found,) = (one for one in hot_files(profile) if one.file == str(known))
    assert found.share(found.weight_us) > 90
