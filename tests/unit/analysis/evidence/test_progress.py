"""The progress of a job between the two samples."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from dstack.analysis.evidence.progress import JobProgress
from dstack.model.diagnosis import Progress
from dstack.model.snapshot import TaskEventWindow
from tests.unit.scenes import JOB, Call, Scene, SceneProcess

OTHER_JOB = "02000000"


@dataclass
class Watched:
    """A driver and a worker that runs a task, sampled once."""

    scene: Scene
    driver: SceneProcess
    worker: SceneProcess
    call: Call

    def progress(self, job: str = JOB) -> Progress:
        found = JobProgress(self.scene.sample().snapshot()).of((job,))
        assert found is not None
        return found

    def moved(self) -> tuple[int, int, int]:
        found = self.progress()
        assert found.has_moved is any((found.started, found.finished, found.submitted))
        return found.started, found.finished, found.submitted


def watched() -> Watched:
    scene = Scene()
    driver = scene.driver()
    call, worker = scene.run("work", by=driver)
    worker.works_for()
    worker.executed = 3
    return Watched(scene.sample(), driver, worker, call)


def test_without_a_second_sample_nothing_is_known() -> None:
    assert JobProgress(watched().scene.snapshot()).of((JOB,)) is None


def test_nothing_moved() -> None:
    it = watched()

    assert it.progress() == Progress(watched_s=1.5, cpu_s=0.0)
    assert not it.progress().has_moved


def test_a_task_that_ends_is_finished() -> None:
    it = watched()
    it.worker.idles().executed = 4
    it.driver.submitted.clear()

    assert it.moved() == (0, 1, 0)


def test_a_task_that_begins_is_started_and_perhaps_submitted() -> None:
    it = watched()
    it.worker.runs(it.scene.task("next", by=it.driver))

    assert it.moved() == (1, 1, 1)


def test_tasks_that_began_and_ended_in_between_count() -> None:
    it = watched()
    it.worker.executed = 10

    assert it.moved() == (7, 7, 0)


def test_a_task_on_a_new_or_dead_worker_counts() -> None:
    it = watched()
    next_call = it.scene.task("next", by=it.driver)
    it.scene.procs.remove(it.worker)
    new = it.scene.worker().works_for().runs(next_call)
    new.executed = 2
    it.scene.task("child", by=new)

    assert it.moved() == (1, 2, 2)


@pytest.mark.parametrize("hidden", ["before", "after"])
def test_a_worker_that_did_not_answer_shows_no_progress(hidden: str) -> None:
    it = watched()
    it.scene.samples.clear()
    it.worker.is_unreachable = hidden == "before"
    it.scene.sample()
    it.worker.is_unreachable = hidden == "after"

    assert it.moved() == (0, 0, 0)


def test_other_jobs_do_not_count() -> None:
    it = watched()
    other = it.scene.driver(job_id=OTHER_JOB)
    it.scene.samples.clear()
    it.scene.sample()
    task, worker = it.scene.run("theirs", by=other)
    worker.works_for(OTHER_JOB)
    worker.executed = 5
    other.cpu_s = 7.0

    assert it.moved() == (0, 0, 0)
    assert it.progress(OTHER_JOB).started > 0
    assert task.task.job_id == OTHER_JOB


def test_polls_and_libraries_calls_for_themselves_are_no_progress() -> None:
    it = watched()
    buffer, stats = it.scene.actor("Buffer"), it.scene.actor("_StatsActor", name="datasets_stats_actor")
    for actor in (buffer, stats):
        actor.works_for().executed = 1
    it.scene.samples.clear()
    it.scene.sample()
    calls = [it.scene.call(buffer, "size", by=it.driver), it.scene.call(stats, "update", by=it.driver)]
    it.scene.repeats(calls[0], by=it.driver)
    for actor, call in zip((buffer, stats), calls, strict=True):
        actor.runs(call).executed = 9

    assert it.moved() == (0, 0, 0)

    it.scene.repeated.clear()
    assert it.progress().has_moved


def test_cpu_time_is_that_of_processes_that_are_the_same() -> None:
    it = watched()
    it.driver.cpu_s, it.worker.cpu_s = 1.25, 50.0
    it.worker.is_restarted()

    assert it.progress().cpu_s == 1.25


@pytest.mark.parametrize(("clock_ahead_s", "idle_s"), [(0.0, 40.0), (None, 40.0), (60.0, None)])
def test_the_newest_end_says_how_long_nothing_ended_where_clocks_agree(
    clock_ahead_s: float | None, idle_s: float | None
) -> None:
    it = watched()
    node = it.scene.nodes[0]
    it.scene.nodes[0] = replace(node, clock_ahead_s=clock_ahead_s)
    snapshot = it.scene.sample().snapshot()
    ends = {JOB: snapshot.taken_at - 40.0, OTHER_JOB: snapshot.taken_at}
    window = TaskEventWindow(kept=9, read=9, last_ended_at=ends)

    found = JobProgress(replace(snapshot, task_event_window=window)).of((JOB,))

    assert found is not None
    assert found.idle_s == idle_s
