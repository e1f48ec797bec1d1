"""Tracks, their titles and order, and marks."""

from __future__ import annotations

import pytest

from dstack.analysis.views.timeline import NOT_STARTED, Timeline
from dstack.model.diagnosis import Group, Since, Target, Vertex, Wait
from dstack.model.snapshot import Actor, TaskAttempt, Worker
from dstack.model.vertex_facts import subject
from dstack.model.vertex_keys import AnyKey, TaskKey, ThreadKey
from tests.unit.support.histories import (
    ACTOR,
    HEAD,
    JOB,
    NOW,
    OTHER,
    attempt,
    driver_attempt,
    index,
    task_id,
    worker_id,
)

DRIVER_WORKER = Worker(
    worker_id=worker_id(100), node_id=HEAD.node_id, ip=HEAD.ip, port=1, pid=100, is_driver=True, job_id=JOB
)
TRAINER = Actor(actor_id=ACTOR, job_id=JOB, class_name="Trainer", state="ALIVE", name="left", worker_id=worker_id(5))
TRAINER_WORKER = Worker(
    worker_id=worker_id(5), node_id=OTHER.node_id, ip=OTHER.ip, port=2, pid=5, actor_id=ACTOR, job_id=JOB
)


def timeline(*attempts: TaskAttempt, **known: object) -> Timeline:
    workers = (DRIVER_WORKER, TRAINER_WORKER)
    return Timeline(index(driver_attempt(), *attempts, actors=(TRAINER,), workers=workers), **known)  # type: ignore[arg-type]


def call(number: int, **known: object) -> TaskAttempt:
    return attempt(number, "Trainer.step", kind="ACTOR_TASK", actor_id=ACTOR, node=OTHER, **known)  # type: ignore[arg-type]


def test_tracks_are_processes_by_node_and_what_has_not_started_is_last() -> None:
    found = timeline(
        call(1, submitted=1, ready=1, sent=1, started=2, ended=3, worker=5),
        call(2, submitted=1, ready=1, sent=1),
        attempt(3, "load", submitted=1, ready=2, sent=3, started=4, ended=5, worker=7),
        attempt(4, "never", submitted=1, ready=2),
        attempt(5, "never", submitted=1, ready=2),
    )

    assert [(track.group, track.title, len(track.attempts)) for track in found.tracks] == [
        ("node 10.0.0.1", "driver train.py, pid 100", 1),
        ("node 10.0.0.1", "worker, pid 7", 1),
        ("node 10.0.0.2", 'actor Trainer "left", pid 5', 2),
        (NOT_STARTED, "never", 2),
    ]
    driver, worker, actor, waiting = found.tracks
    assert [(one.phase, one.is_open) for one in driver.slices] == [("running", True)]
    assert (len(worker.slices), len(actor.slices)) == (1, 1)
    assert (waiting.worker_id, waiting.slices) == (None, [])
    assert found.track_of(waiting.attempts[0]) is waiting


def test_a_constructor_is_on_the_track_of_its_actor() -> None:
    made = attempt(
        1, "Trainer.__init__", submitted=0, ready=0, started=1, ended=2, kind="ACTOR_CREATION_TASK", actor_id=ACTOR
    )
    alone = timeline(made)
    with_calls = timeline(made, call(2, submitted=0, sent=2, started=3, worker=6))

    assert [track.key for track in alone.tracks][1:] == [worker_id(5)]
    assert [(track.key, len(track.attempts)) for track in with_calls.tracks][1:] == [(worker_id(6), 2)]


def test_the_end_of_a_task_is_at_most_the_beginning_of_the_next_one_in_its_process() -> None:
    found = timeline(
        attempt(1, "a", submitted=0, started=1, ended=2.5, worker=7),
        attempt(2, "b", submitted=0, started=2, ended=3, worker=7),
        call(3, submitted=0, started=1, ended=2.01, worker=5),
        call(4, submitted=0, started=2, ended=3, worker=5),
    )

    for track in found.tracks[1:]:
        assert [(one.began_at - NOW, one.ended_at - NOW) for one in track.slices] == [(1, 2), (2, 3)]
        assert len(track.lanes) == 1


def test_calls_at_the_same_time_have_lanes() -> None:
    found = timeline(
        call(1, submitted=0, started=1, ended=4, worker=5), call(2, submitted=0, started=2, ended=3, worker=5)
    )

    assert [len(lane) for lane in found.tracks[1].lanes] == [1, 1]
    assert [one.ended_at - NOW for one in found.tracks[1].slices] == [4, 3]


def test_bounds_and_the_attempts_of_one_job() -> None:
    found = timeline(attempt(1, "a", submitted=-5, started=1, ended=120, worker=7))
    none = Timeline(found.history, job="02000000")

    assert (found.began_at, found.ended_at) == (NOW - 5, NOW + 120)
    assert (list(none.tracks), none.began_at, none.ended_at) == ([], NOW + 100, NOW + 100)
    assert Timeline(found.history, job=JOB).attempts == found.attempts


def test_marks_are_the_waits_of_the_snapshot_on_their_tracks() -> None:
    running = Vertex(
        key=ThreadKey(worker_id(5), 5),
        kind="execution",
        subject=subject("named", "Trainer.step"),
        worker_id=worker_id(5),
        os_thread_id=5,
        task_id=task_id(1),
        wait=Wait(kind="ray.get", groups=(Group(needs=1, targets=(Target(vertex=TaskKey(task_id(2))),)),)),
        since=Since(at_least_s=2.0),
    )
    pending = Vertex(
        key=TaskKey(task_id(2)),
        kind="task",
        subject=subject("named", "never"),
        task_id=task_id(2),
        wait=Wait(kind="lock", groups=()),
    )
    helper = Vertex(
        key=AnyKey("room", ()), kind="room", subject=subject("room anywhere"), wait=Wait(kind="lock", groups=())
    )
    elsewhere = Vertex(
        key=TaskKey(task_id(9)),
        kind="task",
        subject=subject("named", "unknown"),
        task_id=task_id(9),
        wait=Wait(kind="lock", groups=()),
    )
    vertices = {vertex.key: vertex for vertex in (running, pending, helper, elsewhere)}
    found = timeline(
        call(1, submitted=0, started=1, worker=5), attempt(2, "never", submitted=1, ready=2), vertices=vertices
    )

    first, second = found.marks
    assert (first.track, first.key, first.since) == (worker_id(5), running.key, running.since)
    assert first.text.endswith("waits in ray.get for never")
    assert first.attempt is not None
    assert (first.attempt.task.task_id, first.at) == (task_id(1), NOW + 100)
    assert found.track_by_key[second.track].group == NOT_STARTED


@pytest.mark.parametrize("count", [0, 1])
def test_a_timeline_of_almost_nothing(count: int) -> None:
    found = Timeline(index(*[driver_attempt()] * count))

    assert len(found.tracks) == count
    assert (list(found.chains), list(found.pipelines), list(found.marks)) == ([], [], [])
