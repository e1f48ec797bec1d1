"""Requests to the GCS for ended tasks, the relevant parts of replies, and their join with samples."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from dstack.model import FailedTask, Job, Sample
from dstack.observed_node import Ref, Task
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.ray_stubs import common_pb2, gcs_pb2, gcs_service_pb2
from dstack.probes.connection.rpc import Call, CallFailure
from dstack.probes.ray_state import ended_tasks
from dstack.probes.ray_state.ended_tasks import MAX_EXCLUDED, ask_ended_tasks
from dstack.probes.record import Record

LIVE, DEAD = Job(job_id="02000000"), Job(job_id="01000000", is_dead=True)
CLUSTER = Cluster("127.0.0.1:1", "2.60.0")
NOW = 1.7e9
TASK = "1a" * 24


class Gcs:
    """The replies of the GCS for each state, and its requests."""

    def __init__(self, **replies: Any) -> None:
        self.replies = replies
        self.requests: dict[str, Any] = {}

    def call_all(self, calls: Sequence[Call], metadata: Any) -> list[Any]:
        for call in calls:
            (state,) = call.request.filters.state_filters
            self.requests[state.state] = call.request
        return [self.replies.get(state, gcs_service_pb2.GetTaskEventsReply()) for state in self.requests]


def row(job: Job, state: str, task_id: str = TASK) -> Any:
    made = gcs_pb2.TaskEvents(task_id=bytes.fromhex(task_id), job_id=bytes.fromhex(job.job_id))
    made.task_info.name, made.task_info.type = "Worker.step", common_pb2.ACTOR_TASK
    made.state_updates.state_ts_ns[common_pb2.TaskStatus.Value(state)] = int(NOW * 1e9)
    return made


def asked(monkeypatch: pytest.MonkeyPatch, gcs: Gcs, jobs: Sequence[Job] = (LIVE, DEAD)) -> ended_tasks.EndedTasks:
    monkeypatch.setattr(ended_tasks, "call_all", gcs.call_all)
    return ask_ended_tasks(CLUSTER, jobs, 1.0, NOW)


def test_only_live_jobs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {state: [row(job, state) for job in (LIVE, DEAD)] for state in ("FAILED", "FINISHED")}
    replies = {
        state: gcs_service_pb2.GetTaskEventsReply(events_by_task=made, num_total_stored=4, num_truncated=1)
        for state, made in rows.items()
    }

    found = asked(monkeypatch, Gcs(**replies))

    assert [task.job_id for task in found.failed] == [LIVE.job_id]
    assert found.window is not None
    assert (found.window.kept, found.window.read, found.window.is_limited) == (4, 1, True)
    assert (found.window.oldest_at, found.window.last_ended_at) == (NOW, {LIVE.job_id: NOW})


def test_the_newest_dead_jobs_are_left_out_by_the_gcs(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(job_id=f"{i:08x}", is_dead=True) for i in range(MAX_EXCLUDED + 9)]
    gcs = Gcs()

    asked(monkeypatch, gcs, [*jobs, LIVE])

    for request in gcs.requests.values():
        excluded = [one.job_id.hex() for one in request.filters.job_filters]
        assert sorted(excluded) == [job.job_id for job in jobs[9:]]
        assert {one.predicate for one in request.filters.job_filters} == {gcs_service_pb2.NOT_EQUAL}
        assert 0 < request.limit <= 2000


def test_a_missing_reply_keeps_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = gcs_service_pb2.GetTaskEventsReply(events_by_task=[row(LIVE, "FAILED")])
    late = CallFailure("no answer within 1.0 s", "timeout")

    found = asked(monkeypatch, Gcs(FAILED=failed, FINISHED=late))
    neither = asked(monkeypatch, Gcs(FAILED=late, FINISHED=late))

    assert ([task.name for task in found.failed], found.repeated, found.window) == (["Worker.step"], (), None)
    assert neither == ended_tasks.EndedTasks()


def test_a_failed_task_is_held_while_a_process_has_its_ref_and_not_failed_while_it_is_retried() -> None:
    record = Record(began=time.monotonic())
    held, released, retried = (FailedTask(task_id=letter * 48, name=letter, job_id=LIVE.job_id) for letter in "abc")
    task = Task(
        task_id=retried.task_id, owner_id="", name="c", kind="NORMAL_TASK", state="PENDING_NODE_ASSIGNMENT", job_id=""
    )
    record.samples.append(Sample(began_s=0.0, ended_s=0.1, tasks=(task,)))
    record.note_refs(
        [
            Ref(ref=held.task_id + "01000000", holder_id="w", local_uses=1),
            Ref(ref=released.task_id + "01000000", holder_id="w", local_uses=0, argument_uses=1),
            Ref(ref="f" * 16 + released.task_id[16:] + "01000000", holder_id="w", local_uses=1),
        ]
    )

    found = list(record.not_retried([held, released, retried]))

    assert [(task.name, task.is_held) for task in found] == [("a", True), ("b", False)]
