"""Random programs of ranks that differ in one call: their ledgers are right, and so is what dstack says of them.

    python -m pytest -s -m libraries tests/rank_programs

A program, what dstack says of it and its snapshot stay in ``/tmp/rankprograms/SEED``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files import snapshot_file
from dstack.report.check_json import check_json
from dstack.report.text import report_text
from tests.clusters.dstack_command import dstack
from tests.clusters.ray_clusters import RayCluster, ray_cluster
from tests.fuzzing.effort import tries
from tests.processes import wait_until
from tests.rank_programs import rank_actor
from tests.rank_programs.generator import MUTATIONS, SLOW, Generator, Program
from tests.rank_programs.judge import Json, Reading, differences, errors
from tests.rank_programs.library_programs import LIBRARIES, LibraryProgram

pytestmark = [pytest.mark.libraries, pytest.mark.exhaustive]

FOLDER = Path(tempfile.gettempdir()) / "rankprograms"
REST_S, SETTLED_S = 4.0, 120.0
"""The time without a call after which a program is at rest, and the deadline for that."""
HEALTHY_FROM = 1000
AnyProgram = Program | LibraryProgram
SNAPSHOT, RECORDS = "snapshot.json.gz", "records.json"


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """The lines of a table with a row for each program, printed at the end."""
    rows = ["seed  ranks  mutation         rank  state  exit  verdict    difference, and what is wrong"]
    yield rows
    print("\n" + "\n".join(rows))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A node for all programs, each of which is a job of its own."""
    with ray_cluster(num_cpus=4) as cluster:
        yield cluster


@pytest.mark.parametrize("seed", range(tries(36)))
def test_a_rank_that_differs_is_named(seed: int, cluster: RayCluster, table: list[str]) -> None:
    _judge(program_of(seed), cluster, table)


@pytest.mark.parametrize("seed", range(HEALTHY_FROM, HEALTHY_FROM + tries(10)))
def test_a_slow_rank_is_no_hang(seed: int, cluster: RayCluster, table: list[str]) -> None:
    _judge(program_of(seed), cluster, table)


@pytest.mark.parametrize("program", LIBRARIES, ids=lambda program: program.seed)
def test_a_rank_of_a_library_is_named(program: LibraryProgram, cluster: RayCluster, table: list[str]) -> None:
    for module in program.needs:
        pytest.importorskip(module)
    _judge(program, cluster, table)


def program_of(seed: int) -> Program:
    """The program of a seed: each mutation in turn, from a certain seed on those that are healthy."""
    names = [*SLOW] if seed >= HEALTHY_FROM else [*MUTATIONS]
    return Generator(seed).program(names[seed % len(names)])


def _judge(program: AnyProgram, cluster: RayCluster, table: list[str]) -> None:
    folder = FOLDER / f"{program.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(rank_actor.__file__, folder)
    (folder / "program.py").write_text(program.source())
    with cluster.run_example(folder / "program.py"):
        _wait_for_rest(program, folder)
        _observe(program, folder, cluster)
    reading = reading_of(program, folder)
    wrong = errors(reading)
    table.append(row_of(reading, wrong))
    assert not wrong, f"{folder}: {wrong}"


def judged_again(folder: Path) -> str:
    """The row of a program that ran before, with what this dstack says of its snapshot."""
    known = {program.seed: program for program in LIBRARIES}
    program = known.get(folder.name) or program_of(int(folder.name))
    reading = reading_of(program, folder)
    return row_of(reading, errors(reading))


def _notes(program: AnyProgram, folder: Path) -> list[list[Json]]:
    """What each rank has noted so far."""
    files = [folder / f"rank{rank}" for rank in range(program.ranks)]
    return [[json.loads(line) for line in file.read_text().splitlines()] if file.exists() else [] for file in files]


def _wait_for_rest(program: AnyProgram, folder: Path) -> None:
    """Wait until no rank has made another call for some time."""
    last, since = _notes(program, folder), time.monotonic()

    def rests() -> bool:
        nonlocal last, since
        now = _notes(program, folder)
        if now != last or not all(now):
            last, since = now, time.monotonic()
        return time.monotonic() - since > REST_S

    wait_until(rests, deadline_s=SETTLED_S, what=lambda: f"rest of {folder}: {last}", pause_s=0.5)


def _observe(program: AnyProgram, folder: Path, cluster: RayCluster) -> None:
    """Take a snapshot, then ask the ranks themselves what torch has recorded."""
    options = ("--address", cluster.address, "--no-history", "-o", f"{folder / SNAPSHOT}")
    taken = dstack("snapshot", *options, environment=cluster.environment)
    assert taken.returncode == 0, taken.stderr
    if not program.has_oracle:
        (folder / RECORDS).write_text(json.dumps([[]] * program.ranks))
        return
    command = [sys.executable, rank_actor.__file__, f"{program.ranks}"]
    done = subprocess.run(command, env=dict(cluster.joining), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (folder / RECORDS).write_text(done.stdout.splitlines()[-1])


def reading_of(program: AnyProgram, folder: Path) -> Reading:
    """What was observed of a program, and what dstack says of it."""
    analysed = AnalysedSnapshot.of(snapshot_file.load(folder / SNAPSHOT), nodes_settle_s=0.0)
    text = report_text(analysed)
    (folder / "report.txt").write_text(text)
    return Reading(
        program=program,
        notes=_notes(program, folder),
        records=json.loads((folder / RECORDS).read_text()),
        snapshot=analysed.snapshot,
        document=json.loads(check_json(analysed)),
        exit_code=1 if analysed.diagnosis.fails("deadlock") else 4 if analysed.diagnosis.incomplete else 0,
        text=text,
    )


def row_of(reading: Reading, wrong: list[str]) -> str:
    """The row of a program in the table."""
    program, named = reading.program, [f"{one['kind']} {one['ranks']} {one['number']}" for one in differences(reading)]
    about = f"{program.seed:<5} {program.ranks:<6} {program.mutation:16} {program.mutant:<5} {reading.state:6}"
    return f"{about} {reading.exit_code:<5} {reading.document['verdict']:10} {named or '-'} {wrong or ''}"
