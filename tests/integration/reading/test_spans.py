"""The spans of a real process are read from its memory, on each Python; what is malformed is left out."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dstack.probes.node.cpython.layouts import LAYOUTS, OWN_VERSION
from dstack.probes.node_access.targets import foreign_python
from tests.paths import PROGRAMS, ROOT
from tests.processes import running, wait_until
from tests.sampling import Plain, functions, sample, target
from tests.versions.interpreters import python_or_skip

PROGRAM = PROGRAMS / "processes/spans.py"
OTHERS = [f"{major}.{minor}" for major, minor in LAYOUTS if (major, minor) != OWN_VERSION]
LONG = "x" * 64
BUSY = """
import threading, time
from dstack import span
def spin():
    while True:
        with span("short"):
            for _ in range(50):
                with span("shorter"):
                    sum(range(100))
for _ in range(3):
    threading.Thread(target=spin, daemon=True).start()
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module", params=["own", *OTHERS])
def answer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    """The answer about the program once all of its threads and coroutines wait."""
    python = [sys.executable] if request.param == "own" else python_or_skip(request.param)
    environment = {"PYTHONPATH": str(ROOT)}
    with running([*python, str(PROGRAM)], environment, tmp_path_factory.mktemp("spans") / "log") as child:
        child.wait_for_line("ready", deadline_s=30)

        def settled() -> Plain | None:
            found = sample(target(child.pid, python=foreign_python(child.pid)), finished_spans=True)
            process = found["processes"]["w"]
            return found if _names(process, "MainThread") and len(process["coroutines"]) == 5 else None

        yield wait_until(settled, deadline_s=60, what=lambda: "all threads and coroutines")


def _threads(process: Plain) -> dict[str, Plain]:
    return {thread["name"]: thread for thread in process["threads"]}


def _names(process: Plain, thread: str) -> list[str]:
    return [span["name"] for span in _threads(process)[thread]["spans"]]


def test_each_thread_has_its_open_spans_from_the_outermost(answer: Plain) -> None:
    process = answer["processes"]["w"]

    assert {name: _names(process, name) for name in _threads(process)} == {
        "MainThread": ["main"],
        "nested": ["outer", "inner", LONG],
        "decorated": ["step", "step"],
        "context manager": ["phase"],
        "after": [],
        "malformed": [],
        "loop": ["serve"],
    }


def test_a_span_is_at_the_frame_that_has_entered_it(answer: Plain) -> None:
    threads = _threads(answer["processes"]["w"])
    of_nested, of_decorated = threads["nested"], threads["decorated"]

    names = functions(answer, of_nested)
    assert [names[span["frame"]] for span in of_nested["spans"]] == ["nested", "inner", "inner"]
    names = functions(answer, of_decorated)
    assert [names[span["frame"] - 1] for span in of_decorated["spans"]] == ["decorated", "decorated"]
    assert of_decorated["spans"][0]["frame"] > of_decorated["spans"][1]["frame"]
    assert [span["frame"] for span in threads["context manager"]["spans"]] == [None]


def test_coroutines_have_the_spans_of_their_contexts(answer: Plain) -> None:
    coroutines = answer["processes"]["w"]["coroutines"]
    found = sorted((one["name"], [span["name"] for span in one["spans"]]) for one in coroutines)

    own = [(name, spans) for name, spans in found if not name.startswith("Task-")]
    assert own == [
        ("child", ["serve", "request", "decode"]),
        ("plain", ["serve"]),
        ("request", ["serve", "request"]),
    ]
    assert sorted(spans for name, spans in found if name.startswith("Task-")) == [
        ["serve"],
        ["serve", "request", "decode"],
    ]


def test_finished_spans_have_their_times(answer: Plain) -> None:
    finished = answer["processes"]["w"]["finished_spans"]
    main = answer["processes"]["w"]["pid"]

    assert sorted((span["name"], span["os_thread_id"] == main) for span in finished) == [
        ("finished 0", True),
        ("finished 1", True),
        ("finished 2", True),
        *[(name, False) for name in sorted(("over", "startup"))],
    ]
    assert all(0.009 < span["ended_at"] - span["began_at"] < 5 for span in finished[:3])
    ends = [span["ended_at"] for span in finished]
    assert ends == sorted(ends)
    assert ends[-1] <= _threads(answer["processes"]["w"])["MainThread"]["spans"][0]["began_at"] <= time.time()


def test_finished_spans_are_read_on_demand_only(tmp_path: Path) -> None:
    with running([sys.executable, str(PROGRAM)], {"PYTHONPATH": str(ROOT)}, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)

        assert sample(target(child.pid))["processes"]["w"]["finished_spans"] == []


def test_spans_of_running_threads_are_those_that_the_program_enters(tmp_path: Path) -> None:
    with running([sys.executable, "-c", BUSY], {"PYTHONPATH": str(ROOT)}, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=30)
        for _ in range(20):
            process = sample(target(child.pid), finished_spans=True)["processes"]["w"]
            for thread in process["threads"]:
                names = [span["name"] for span in thread["spans"]]
                assert names in ([], ["short"], ["short", "shorter"], ["shorter"]), names
            assert {span["name"] for span in process["finished_spans"]} <= {"short", "shorter"}
            assert all(span["began_at"] <= span["ended_at"] <= time.time() for span in process["finished_spans"])
