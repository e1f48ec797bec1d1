"""Running: what the driver waits for comes first, then what all depends on, its age, and whether that is slow."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import FunctionTimes, RecentEnds, TaskEventWindow, TaskTimes
from dstack.report.summaries import headline
from tests.unit.analysis.findings.kinds.small_findings import only_finding
from tests.unit.scenes import JOB, Scene, SceneProcess
from tests.unit.scenes.calls import Call


def waiting_for(*names: str) -> tuple[Scene, SceneProcess, list[Call]]:
    """A driver that waits for a task of each of these names, which all run."""
    scene = Scene()
    driver = scene.driver()
    calls: list[Call] = []
    for name in names:
        call, worker = scene.run(name, by=driver)
        worker.threads[0].line = 7
        calls.append(call)
    driver.gets(*calls)
    return scene, driver, calls


def judged(
    scene: Scene, began: Mapping[str, float] | None = None, usual: FunctionTimes | None = None, recent: int = 0
) -> Diagnosis:
    """The diagnosis where tasks began so many seconds ago, and ended calls of ``work`` took as long as ``usual``."""
    snapshot = scene.sample().sample().snapshot()
    window = TaskEventWindow(
        kept=9,
        read=9,
        last_ended_at={JOB: snapshot.taken_at} if recent else {},
        recent={JOB: RecentEnds(tasks=recent, over_s=10.0)},
        functions={JOB: {"work": usual}} if usual else {},
    )
    times = {task: TaskTimes(states={"RUNNING": snapshot.taken_at - ago}) for task, ago in (began or {}).items()}
    return diagnose(replace(snapshot, task_event_window=window, task_times=times))


def test_the_driver_and_what_it_waits_for_are_named() -> None:
    scene, _, _ = waiting_for("work", "work", "load")

    assert headline(judged(scene)) == "driver train.py waits for 2 work and load, all on their way"
    assert headline(judged(scene, recent=34)).startswith("3.4 tasks/s finish; driver train.py waits for 2 work")


def test_the_end_of_a_longer_chain_is_named_with_its_line() -> None:
    scene = Scene()
    driver = scene.driver()
    first, relay = scene.run("first", by=driver)
    last, worker = scene.run("last", by=relay)
    driver.gets(first)
    relay.gets(last)
    worker.threads[0].line = 7

    assert headline(judged(scene)) == "driver train.py waits for first; all depends on last, running at line 7"


@pytest.mark.parametrize(
    ("ago_s", "usual", "text", "is_slow"),
    [
        (2.0, None, "for 2.", False),
        (40.0, None, "for 40 s", True),
        (40.0, FunctionTimes(calls=40, usual_s=30.0), "for 40 s (usually 30 s, by 40 calls)", False),
        (6.0, FunctionTimes(calls=40, usual_s=1.1), "for 6.", True),
        (6.0, FunctionTimes(calls=2, usual_s=0.1), "for 6.", False),
    ],
)
def test_a_call_is_slow_by_what_is_usual(ago_s: float, usual: FunctionTimes | None, text: str, is_slow: bool) -> None:
    scene, _, (call,) = waiting_for("work")

    finding = only_finding(judged(scene, {call.task.task_id: ago_s}, usual))

    assert text in finding.brief[0].text
    assert finding.is_slow == is_slow


def test_without_a_known_age_a_call_is_slow_if_nothing_moves() -> None:
    scene, _, _ = waiting_for("work")

    assert only_finding(judged(scene)).is_slow
    assert not only_finding(judged(scene, recent=3)).is_slow


def test_alike_blockers_are_one_row_with_the_oldest() -> None:
    scene, _, calls = waiting_for("work", "work", "work")

    finding = only_finding(judged(scene, {call.task.task_id: 2.0 + at for at, call in enumerate(calls)}))

    (row,) = finding.brief
    assert row.text.startswith("3 × work, running; the oldest for 4.")
