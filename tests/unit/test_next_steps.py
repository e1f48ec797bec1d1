"""A reader who knows Ray but not dstack finds the next step in the first lines of the report of each example."""

from __future__ import annotations

from pathlib import Path

import pytest

from dstack.analysis.diagnose import diagnose
from dstack.report.text import report_text
from dstack.snapshot_file import load
from tests.clusters import EXAMPLES
from tests.expected import FIRST_LINES, expected_of, first_lines
from tests.unit.scenes import Scene

RECORDED = Path(__file__).parents[1] / "recorded"
NAMES = sorted(path.relative_to(RECORDED).as_posix().removesuffix(".json.gz") for path in RECORDED.rglob("*.json.gz"))
MOST_LINES = 25
"""A cycle of any size is reported in no more."""


@pytest.mark.parametrize("name", NAMES)
def test_the_next_step_is_in_the_first_lines_of_the_report(name: str) -> None:
    snapshot = load(RECORDED / f"{name}.json.gz")
    expected = expected_of(EXAMPLES / f"{name}.py")

    report = report_text(snapshot, diagnose(snapshot))

    assert expected.shows_next_step(report), f"{expected.next_step!r} is not in\n{report}"
    assert expected.verdict not in ("deadlock", "hang") or len(report.splitlines()) <= MOST_LINES


def test_a_next_step_is_found_across_the_lines_and_marks_of_a_report() -> None:
    head = "┌▶ 1  A.go   a.py:21   ray.get(b)\n└─    waits in ray.get\n      for B.go\n"
    report = f"{head}{chr(10) * FIRST_LINES}Fix: late"

    assert first_lines(report) == "1 A.go a.py ray.get(b) waits in ray.get for B.go"


@pytest.mark.parametrize("size", [3, 8, 100, 1000])
def test_the_report_of_a_cycle_of_any_size_is_short(size: int) -> None:
    report = _report_of_cycle(size)

    assert report.startswith("DEADLOCK")
    assert len(report.splitlines()) <= MOST_LINES
    assert "Fix: " in "\n".join(report.splitlines()[:FIRST_LINES])


def _report_of_cycle(size: int) -> str:
    """Each actor waits for a call that is queued on the next one, and a driver waits for the first."""
    scene = Scene()
    driver = scene.driver()
    actors = [scene.actor(f"Member{number % 7}") for number in range(size)]
    calls = [scene.call(actor, "go", by=driver) for actor in actors]
    driver.gets(calls[0])
    for at, actor in enumerate(actors):
        following = actors[(at + 1) % size]
        actor.runs(calls[at]).gets(scene.call(following, "ask", by=actor))
    scene.look()
    scene.look()
    return report_text(scene.snapshot(), scene.diagnose())
