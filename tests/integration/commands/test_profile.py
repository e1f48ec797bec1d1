"""``dstack profile`` on a real cluster: where the time of programs goes that know it themselves; formats and errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from threading import Thread

import pytest

from dstack.analysis.stacks.hot_lines import hot_files
from dstack.analysis.stacks.profiles import times_of
from dstack.files.sampled_file import PROFILES
from dstack.model.profile import PathStep, Profile
from tests.clusters.dstack_command import DSTACK, Result, dstack
from tests.clusters.ray_clusters import Example
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import wait_until

pytestmark = pytest.mark.ray

RUNS = frozenset({"load", "train", "store", "compute", "licensed", "outer", "step", "respond", "computing"})
MEASURED_S = 30.0
WITHIN_POINTS = 5.0
ENDED_S = 240.0
Running = tuple[Example, Path]


@pytest.fixture(scope="module")
def program(shared: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("known_shares")
    with shared.running(PROGRAMS / "drivers/known_shares.py", [str(folder)]) as running:
        yield running, folder


@contextmanager
def profiling(running: Example, *options: str) -> Iterator[tuple[subprocess.Popen[str], bytearray]]:
    """A running ``dstack profile`` that has samples, as its terminal says, and what that shows; killed at the end."""
    command = [*DSTACK, "profile", "--address", running.address, *options]
    environment = {**running.environment, "TERM": "xterm"}
    terminal, its_end = os.openpty()
    shown = bytearray()

    def read() -> None:
        with suppress(OSError):  # at its end
            while data := os.read(terminal, 65536):
                shown.extend(data)

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its_end, text=True, env=environment) as child:
        os.close(its_end)
        reader = Thread(target=read, daemon=True)
        reader.start()
        try:
            has_samples = re.compile(rb"[1-9]\d* samples")
            wait_until(lambda: has_samples.search(shown), deadline_s=60, what=lambda: f"a profile: {shown!r}")
            yield child, shown
        finally:
            child.kill()
            reader.join()
            os.close(terminal)


def spent_in(running: Example) -> str | None:
    lines = (line for line in running.log.read_text().splitlines(keepends=True) if line.startswith("spent "))
    return next((line.removeprefix("spent ") for line in lines if line.endswith("\n")), None)


def profiled(running: Example, folder: Path, seconds: float = MEASURED_S) -> tuple[Profile, str]:
    """A profile of programs from their begin to their end, and what they printed about it."""
    with profiling(running, "--rate", "10", "-o", str(folder / "p.json")) as (child, shown):
        (folder / "begin").touch()
        time.sleep(seconds)
        (folder / "end").touch()
        spent = wait_until(lambda: spent_in(running), deadline_s=120, what=running.output)
        child.send_signal(SIGINT)
        child.communicate(timeout=ENDED_S)
    assert child.returncode == 0, shown
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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_the_source_of_its_frames_is_in_the_profile(measured: tuple[Profile, dict[str, float]]) -> None:
    profile, _ = measured
    known = PROGRAMS / "drivers/known_shares.py"
    lines = known.read_text().splitlines()
    places = {(step.file, step.line) for step in profile.steps if step.file == str(known)}

    assert places
    assert {lines[line - 1] for _, line in places} == {profile.sources[file][line] for file, line in places}
    (found,) = (one for one in hot_files(profile) if one.file == str(known))
    assert found.share(found.weight_us) > 90


# Forms, roots and signals


def profile(program: Running, *options: str) -> Result:
    running, _ = program
    return dstack("profile", "--address", running.address, *options, environment=running.environment)


def test_the_heaviest_chains_are_printed(program: Running) -> None:
    done = profile(program, "--duration", "2")

    assert done.returncode == 0, done.stderr
    assert re.match(r"2\.\d s of driver known_shares\.py, in \d+ samples, ", done.stdout)
    assert re.search(r"^ 1\. +\d+\.\d %  .+\n    from driver known_shares\.py", done.stdout, re.MULTILINE)


@pytest.mark.exhaustive
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
    with profiling(running) as (child, shown):
        child.send_signal(number)
        out, _ = child.communicate(timeout=ENDED_S)

    assert child.returncode == code, shown
    assert re.match(r"\d\.\d s of driver known_shares\.py, in \d+ samples, ", out)
    heaviest = re.search(r"^ 1\. +(\d+\.\d) %  .*<module> \(known_shares\.py:\d+\) → time\.sleep$", out, re.MULTILINE)
    assert heaviest, out
    assert float(heaviest[1]) > 50


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
