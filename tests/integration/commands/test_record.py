"""``dstack record`` on a real cluster: each format, Ctrl-C, py-spy, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals

import pytest

from dstack.files.sampled_file import RECORDINGS
from dstack.model.recording import Recording
from tests.clusters.dstack_command import DSTACK, Result, dstack
from tests.clusters.ray_clusters import Example
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS
from tests.processes import reads_memory, wait_until

pytestmark = pytest.mark.ray

KINDS = {"actor Trainer", "task load"}
ENDED_S = 60.0


@pytest.fixture(scope="module")
def busy(shared: SharedCluster) -> Iterator[Example]:
    """A cluster with two busy actors and a busy task; yields once all of them are recorded."""
    with shared.running(PROGRAMS / "drivers/busy.py") as program:
        wait_until(
            lambda: {line.split(";")[1] for line in record(program, "-").stdout.splitlines()} >= KINDS,
            deadline_s=120,
            what=lambda: f"samples of {KINDS}",
        )
        yield program


def record(program: Example, output: str | Path, *options: str, duration_s: float = 2) -> Result:
    where = ("--address", program.address, "--duration", str(duration_s), "-o", str(output))
    return dstack("record", *where, *options, environment=program.environment)


def recorded(program: Example, folder: Path, *options: str) -> Recording:
    done = record(program, folder / "r.json.gz", *options)
    assert done.returncode == 0, done.stderr
    return RECORDINGS.load(folder / "r.json.gz")


def functions_of(recording: Recording, kind: str) -> set[str]:
    """The unqualified names of all functions in the stacks of a kind of work."""
    found = (one for one in recording.counts if recording.threads[one.thread].kind == kind)
    return {frame.function.rpartition(".")[2] for count in found for frame in recording.frames_of(count)}


def test_running_code_is_recorded_with_the_work_it_belongs_to(busy: Example, tmp_path: Path) -> None:
    done = record(busy, tmp_path / "r.json")
    recording = RECORDINGS.load(tmp_path / "r.json")

    assert done.returncode == 0
    assert f"Saved. Show it with: dstack tui {tmp_path}/r.json\n" in done.stderr
    assert {thread.kind for thread in recording.threads} >= KINDS
    assert {"train", "step"} <= functions_of(recording, "actor Trainer")
    assert "load" in functions_of(recording, "task load")
    assert {one.name for one in recording.threads if one.kind == "actor Trainer"} == {"first", "<b>second</b>"}
    assert all(thread.node.startswith("node ") and thread.job_id for thread in recording.threads)
    assert all(count.is_running for count in recording.counts)
    assert recording.coverage.taken > 0
    assert recording.failures == ()
    assert recording.rate_hz == 20


@pytest.mark.exhaustive
def test_each_suffix_is_a_format(busy: Example, tmp_path: Path) -> None:
    folded, scope, page = (tmp_path / f"r{suffix}" for suffix in (".folded", ".speedscope.json", ".html"))
    for path in (folded, scope, page):
        done = record(busy, path)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert "Saved. " in done.stderr

    groups = {tuple(line.split(";")[:2]) for line in folded.read_text().splitlines()}
    assert {kind for _, kind in groups} >= KINDS
    assert json.loads(scope.read_text())["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert "actor Trainer" in page.read_text()
    assert "Application frames" in page.read_text()


def test_idle_threads_are_recorded_on_demand(busy: Example, tmp_path: Path) -> None:
    recording = recorded(busy, tmp_path, "--idle")

    assert {count.is_running for count in recording.counts} == {True, False}
    assert "get" in functions_of(recording, "driver busy.py")
    assert recording.options.idle


@pytest.mark.parametrize("option", ["--gil", "--native"])
def test_pyspy_records_what_only_it_can(busy: Example, tmp_path: Path, option: str) -> None:
    recording = recorded(busy, tmp_path, option)

    assert {thread.kind for thread in recording.threads} >= KINDS
    assert "step" in functions_of(recording, "actor Trainer")
    assert recording.failures == ()


def test_one_job_is_recorded(busy: Example, tmp_path: Path) -> None:
    of_job = recorded(busy, tmp_path, "--job", "busy.py")
    unknown = record(busy, tmp_path / "unknown.json", "--job", "other.py")

    assert {thread.job_id for thread in of_job.threads} == {of_job.options.job_id}
    assert (unknown.returncode, unknown.stderr.splitlines()[0]) == (2, "Error: No job is called other.py.")
    assert not (tmp_path / "unknown.json").exists()


@pytest.mark.parametrize(("number", "code"), [(SIGINT, 0), (SIGTERM, 128 + SIGTERM)])
def test_a_signal_ends_the_recording_and_keeps_it(busy: Example, tmp_path: Path, number: Signals, code: int) -> None:
    path = tmp_path / "r.json"
    command = [*DSTACK, "record", "--address", busy.address, "--duration", "600", "-o", str(path)]
    with subprocess.Popen(command, env=dict(busy.environment), stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: reads_memory(process.pid), deadline_s=60, what=lambda: "a recording")
        process.send_signal(number)
        _, err = process.communicate(timeout=ENDED_S)

    assert process.returncode == code, err
    recording = RECORDINGS.load(path)
    assert recording.counts
    assert recording.duration_s < 60


def test_existing_files_are_kept(busy: Example, tmp_path: Path) -> None:
    path = tmp_path / "r.folded"
    path.write_text("mine")
    refused = record(busy, path)
    forced = record(busy, path, "--force", duration_s=0.5)

    assert (refused.returncode, "already exists" in refused.stderr) == (2, True)
    assert forced.returncode == 0
    assert path.read_text() != "mine"
