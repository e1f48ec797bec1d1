"""Process groups, calls on them, ranks and labels read from memory equal those of the program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dstack.probes.node.cpython.layouts import LAYOUTS, OWN_VERSION
from dstack.probes.node_access.targets import foreign_python
from tests.paths import PROGRAMS
from tests.processes import Child, running, wait_until
from tests.sampling import Plain, sample, target, words_of, words_of_group
from tests.versions.interpreters import python_or_skip

PROGRAM = PROGRAMS / "processes/process_groups.py"
OTHERS = [f"{major}.{minor}" for major, minor in LAYOUTS if (major, minor) != OWN_VERSION]
LABELS = """
import dstack, time
dstack.label(tp=1, stage="rollout")
dstack.label(stage="update")
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module", params=["own", *OTHERS])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """The program, run by the Python that runs the tests, and by every other supported version."""
    python = [sys.executable] if request.param == "own" else python_or_skip(request.param)
    with running([*python, str(PROGRAM)], {}, tmp_path_factory.mktemp("groups") / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        yield child


@pytest.fixture(scope="module")
def said(program: Child) -> Plain:
    """The JSON that the program prints about its groups and threads."""
    values: Plain = program.printed_json()
    return values


def read(program: Child) -> Plain:
    process: Plain = sample(target(program.pid, python=foreign_python(program.pid)))["processes"]["w"]
    return process


def calls_of(process: Plain) -> Plain:
    """The calls on process groups, by the name of the thread."""
    calls = {thread["name"]: words_of(thread["call"]) for thread in process["threads"]}
    return {name: call["of_group"] for name, call in calls.items() if "of_group" in call}


@pytest.fixture(scope="module")
def process(program: Child, said: Plain) -> Plain:
    """The process, once all its threads wait."""

    def settled() -> Plain | None:
        process = read(program)
        return process if calls_of(process).keys() == said["calls"].keys() else None

    return wait_until(settled, deadline_s=60, what=lambda: f"calls, of which there are {calls_of(read(program))}")


def test_only_groups_with_a_certain_rank_are_read(process: Plain, said: Plain) -> None:
    assert [words_of_group(group) for group in process["process_groups"]] == said["groups"]


def test_every_call_has_the_dependency_that_the_program_prints(process: Plain, said: Plain) -> None:
    assert {
        name: {**{key: value for key, value in call.items() if key != "mark"}, "sleeps": not call["mark"]}
        for name, call in calls_of(process).items()
    } == said["calls"]


def test_the_mark_of_a_call_is_stable_until_it_returns(program: Child, process: Plain, said: Plain) -> None:
    marks = {name: call["mark"] for name, call in calls_of(process).items()}
    again = {name: call["mark"] for name, call in calls_of(read(program)).items()}

    assert {name: again[name] for name in again} == {name: marks[name] for name in again}
    assert len(again) > len(said["calls"]) - 3  # one that polls may have run just then


def test_the_rank_is_that_in_the_default_group(process: Plain) -> None:
    assert (process["rank"], process["local_rank"], process["world_size"]) == (2, 1, 4)


def test_labels_are_bounded_and_of_plain_values(process: Plain) -> None:
    labels = process["labels"]

    assert {name: labels[name] for name in ("tp", "stage", "share", "is_first")} == {
        "tp": "1",
        "stage": "rollout",
        "share": "0.5",
        "is_first": "True",
    }
    assert not {"none", "list"} & labels.keys()
    assert len(labels) <= 32
    assert max(map(len, labels.values())) == 128


def test_dstack_label_is_read_from_a_process(tmp_path: Path) -> None:
    with running([sys.executable, "-c", LABELS], {}, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)

        assert read(child)["labels"] == {"tp": "1", "stage": "update"}
