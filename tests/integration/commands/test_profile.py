"""``dstack profile`` on a real cluster: where the time of programs goes that know it themselves; formats and errors."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT

import pytest

from dstack.analysis.stacks.profiles import times_of
from dstack.files.profile_file import load
from dstack.model.profile import PathStep, Profile
from tests.clusters.dstack_command import DSTACK
from tests.clusters.ray_clusters import Example
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import reads_memory, wait_until

pytestmark = pytest.mark.ray

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
def ended(command: Sequence[str], running: Example) -> Iterator[subprocess.Popen[str]]:
    """A command that is killed at the end."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(running.environment)) as child:
        try:
            yield child
        finally:
            child.kill()


def spent_in(running: Example) -> str | None:
    lines = (line for line in running.log.read_text().splitlines(keepends=True) if line.startswith("spent "))
    return next((line.removeprefix("spent ") for line in lines if line.endswith("\n")), None)


@pytest.fixture(scope="module")
def measured(program: Running) -> tuple[Profile, dict[str, float]]:
    """A profile of the programs from their begin to their end, and the seconds that they measured themselves."""
    running, folder = program
    command = [*DSTACK, "profile", "--address", running.address, "--rate", "10", "-o", str(folder / "p.json")]
    with ended(command, running) as child:
        wait_until(lambda: reads_memory(child.pid), deadline_s=60, what=lambda: "a profile")
        (folder / "begin").touch()
        time.sleep(MEASURED_S)
        (folder / "end").touch()
        spent = wait_until(lambda: spent_in(running), deadline_s=120, what=running.output)
        child.send_signal(SIGINT)
        _, err = child.communicate(timeout=ENDED_S)
    assert child.returncode == 0, err
    return load(folder / "p.json"), json.loads(spent)


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
