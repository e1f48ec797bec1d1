"""Recorded stacks of real processes, on every supported Python: what ran, and for which share of the samples."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dstack.probes.node.cpython.layouts import LAYOUTS, OWN_VERSION
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import ReadTarget
from dstack.probes.node_access.targets import foreign_python
from tests.paths import PROGRAMS
from tests.processes import Child, running, wait_until
from tests.sampling import Plain, counted, record, target
from tests.versions.interpreters import python_or_skip

PROGRAM = PROGRAMS / "processes/recorded_work.py"
OTHERS = [f"{major}.{minor}" for major, minor in LAYOUTS if (major, minor) != OWN_VERSION]
ENOUGH = 60


@pytest.fixture(
    scope="module", params=["own", *(pytest.param(version, marks=pytest.mark.exhaustive) for version in OTHERS)]
)
def python(request: pytest.FixtureRequest) -> list[str]:
    return [sys.executable] if request.param == "own" else python_or_skip(request.param)


@pytest.fixture(scope="module")
def worker(python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A program with one thread."""
    yield from begun(python, tmp_path_factory.mktemp("worker") / "log")


@pytest.fixture(scope="module")
def threaded(python: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A program with an idle thread, a deep one, and others that begin and end."""
    yield from begun(python, tmp_path_factory.mktemp("threaded") / "log", "threads")


def begun(python: list[str], log: Path, *arguments: str) -> Iterator[Child]:
    with running([*python, str(PROGRAM), *arguments], {}, log) as child:
        child.wait_for_line("ready", deadline_s=30)
        yield child


def own_target(child: Child) -> ReadTarget:
    return target(child.pid, python=foreign_python(child.pid))


def recorded(
    child: Child, enough: int = ENOUGH, thread: str | None = None, **options: object
) -> tuple[Counter[tuple[str, ...]], list[Plain]]:
    """The samples of as many rounds as it takes, and the rounds."""
    probe, total, rounds = NodeProbe(), Counter[tuple[str, ...]](), []

    def is_enough() -> bool:
        rounds.append(record(own_target(child), probe=probe, **options))
        total.update(counted(rounds[-1], thread))
        return total.total() >= enough

    wait_until(is_enough, deadline_s=120, what=lambda: f"{enough} samples: {total}, {rounds[-1]['failures']}")
    return total, rounds


def test_functions_have_their_shares_of_the_samples(worker: Child) -> None:
    total, rounds = recorded(worker, enough=150)

    shares = {name: sum(n for stack, n in total.items() if name in stack) for name in ("three_quarters", "one_quarter")}
    assert 0.55 < shares["three_quarters"] / sum(shares.values()) < 0.92
    assert {stack[:2] for stack in total} == {("<module>", "main")}
    assert all(stack[-1] in ("spin", "three_quarters", "one_quarter", "main") for stack in total)
    figures = [one["coverage"] for one in rounds]
    torn = sum(one["torn"] for one in figures)
    assert torn <= 0.1 * total.total()
    assert total.total() <= sum(one["taken"] for one in figures) <= sum(one["wanted"] for one in figures)
    assert all(one["failures"] == [] for one in rounds)


def test_deep_stacks_are_whole(threaded: Child) -> None:
    total, _ = recorded(threaded, enough=5, thread="deep")

    bootstrap = ("_bootstrap", "_bootstrap_inner", "run")
    assert {stack[:3] for stack in total} == {bootstrap}
    assert all(stack.count("descend") == 801 for stack in total if stack[-1] in ("descend", "spin"))


def test_idle_threads_are_included_on_demand(threaded: Child) -> None:
    _, rounds = recorded(threaded)
    assert "idle" not in {thread["thread_name"] for one in rounds for thread in one["threads"]}

    _, rounds = recorded(threaded, idle=True)
    idle = {thread["thread_name"] for one in rounds for thread in one["threads"]}
    assert {"MainThread", "idle", "deep", "starter"} <= idle
    (number,) = {i for i, thread in enumerate(rounds[-1]["threads"]) if thread["thread_name"] == "idle"}
    assert {count[3] for count in rounds[-1]["counts"] if count[0] == number} == {False}
    assert any("wait" in stack for stack in counted(rounds[-1], "idle"))


def test_threads_that_begin_and_end_do_no_harm(threaded: Child) -> None:
    _, rounds = recorded(threaded, enough=200)

    assert all(one["failures"] == [] for one in rounds)
    stacks = set().union(*(counted(one) for one in rounds))
    known = {"<module>", "main", "_bootstrap"}
    assert {stack[0] for stack in stacks} <= known


def test_a_process_that_ends_keeps_its_samples(python: list[str], tmp_path: Path) -> None:
    probe = NodeProbe()
    with running([*python, str(PROGRAM)], {}, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        wanted = own_target(child)
        wait_until(lambda: counted(record(wanted, probe=probe)), deadline_s=60, what=lambda: "samples")

    after = record(wanted, probe=probe, seconds=0.2)
    assert after["counts"] == []
    assert [failure["cause"] for failure in after["failures"]] == ["ended"]


def test_the_rate_is_lowered_to_bound_the_cpu_time(threaded: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dstack.probes.node.sampling.sampler.LEAST_CPU", 1e-6)
    monkeypatch.setattr("dstack.probes.node.sampling.sampler.MOST_CPU", 1e-6)
    probe = NodeProbe()
    first = record(own_target(threaded), probe=probe)
    second = record(own_target(threaded), probe=probe)

    assert first["coverage"]["lowest_rate_hz"] == 50
    assert second["coverage"]["lowest_rate_hz"] == 1
    assert second["coverage"]["taken"] in (0, 50)
    assert all(count[2] % 50 == 0 for count in second["counts"])


@pytest.mark.parametrize("options", [{"gil": True}, {"native": True}])
def test_pyspy_records_what_only_it_can(options: dict[str, bool], tmp_path: Path) -> None:
    probe = NodeProbe()
    with running([sys.executable, str(PROGRAM)], {}, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        found = record(target(child.pid), probe=probe, is_last=False, seconds=3.0, **options)
        assert found["counts"] == []
        found = record(target(child.pid), probe=probe, is_last=True, seconds=0.0, **options)

    assert found["failures"] == []
    assert any("spin" in stack for stack in counted(found))
    assert found["coverage"]["taken"] > 0


def test_a_python_that_dstack_cannot_read_is_recorded_by_pyspy(tmp_path: Path) -> None:
    probe = NodeProbe()
    with running([sys.executable, str(PROGRAM)], {}, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        wanted = target(child.pid, python={"unreadable": "a build for tests"})
        record(wanted, probe=probe, seconds=3.0)
        found = record(wanted, probe=probe, is_last=True, seconds=0.0)

    assert any("spin" in stack for stack in counted(found))
    (failure,) = found["failures"]
    assert "a build for tests" in failure["reason"]


def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    probe = NodeProbe()
    with running([sys.executable, str(PROGRAM)], {}, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        for _ in range(3):
            record(target(child.pid), probe=probe, seconds=0.1)
    record(probe=probe, seconds=0.0)

    assert len(list(Path("/proc/self/fd").iterdir())) == before
