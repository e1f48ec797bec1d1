"""Task events of the GCS: attempts of a history, failed tasks in synthetic rows, and ended tasks of live jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import pytest

from dstack.model.snapshot import FailedTask, Job, Sample, TaskHistory
from dstack.observed.node import Ref, Task
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.ray_stubs import common_pb2, gcs_pb2, gcs_service_pb2
from dstack.probes.connection.rpc import CallFailure, UnaryCall
from dstack.probes.observations import Observations
from dstack.probes.ray_state import event_source, task_events
from dstack.probes.ray_state.task_events import (
    MAX_ERROR,
    MAX_EXCLUDED,
    MAX_TASKS,
    TracebackLine,
    ask_ended_tasks,
    ask_history,
    failed_tasks,
    first_line_of_error,
    history_of,
    innermost_place,
    object_bytes,
)

FAILED, ACTOR, WORKER, NODE = "1a" * 24, "2b" * 16, "3c" * 28, "4d" * 28
TRACEBACK = """Traceback (most recent call last):
  File "python/ray/_raylet.pyx", line 2306, in ray._raylet.execute_task
  File "/usr/lib/python3/site-packages/ray/_private/function_manager.py", line 740, in actor_method_executor
    return method(__ray_actor, *args, **kwargs)
  File "/srv/app/model.py", line 31, in execute_model
    return self.forward(batch)
           ^^^^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/site-packages/torch/nn/module.py", line 7, in forward
    raise RuntimeError("out of memory")
RuntimeError: out of memory
tried to allocate 2 GiB
"""


def failed_row(**fields: Any) -> Any:
    """A failed actor call's row; ``details`` is the JSON that its executor reported, if any."""
    made = gcs_pb2.TaskEvents(
        task_id=bytes.fromhex(fields.get("task_id", FAILED)),
        attempt_number=fields.get("attempt", 0),
        job_id=bytes.fromhex(JOB),
    )
    made.task_info.name = "Worker.execute_model"
    made.task_info.type = common_pb2.ACTOR_TASK
    made.task_info.actor_id = bytes.fromhex(ACTOR)
    state = made.state_updates
    state.node_id, state.worker_id, state.worker_pid = bytes.fromhex(NODE), bytes.fromhex(WORKER), 7
    state.error_info.error_type = fields.get("error_type", common_pb2.TASK_EXECUTION_EXCEPTION)
    state.error_info.error_message = fields.get("message", "")
    state.state_ts_ns[common_pb2.FAILED] = int(fields.get("failed_at", NOW) * 1e9)
    if "details" in fields:
        made.profile_events.events.add(event_name="task:execute", extra_data=fields["details"])
    return made


def details(**fields: str) -> str:
    known = {"type": "<class 'RuntimeError'>", "value": "out of memory\ntried to allocate", "traceback": TRACEBACK}
    return json.dumps({**known, **fields})


def test_a_failed_call_has_its_error_and_the_users_line() -> None:
    (task,) = failed_tasks([failed_row(details=details())])

    assert (task.task_id, task.name, task.job_id, task.actor_id) == (FAILED, "Worker.execute_model", JOB, ACTOR)
    assert (task.worker_id, task.node_id, task.pid, task.failed_at) == (WORKER, NODE, 7, NOW)
    assert task.error_type == "TASK_EXECUTION_EXCEPTION"
    assert task.error == "RuntimeError: out of memory"
    assert (task.file, task.line, task.source) == ("/srv/app/model.py", 31, "return self.forward(batch)")


def test_the_end_of_the_message_is_the_fallback_for_the_executors_traceback() -> None:
    message = f"User exception:\n\x1b[36mray::Worker.execute_model()\x1b[39m (pid=7, ip=10.0.0.1)\n{TRACEBACK}"

    (task,) = failed_tasks([failed_row(message=message)])

    assert task.error == "RuntimeError: out of memory"
    assert (task.file, task.line, task.source) == ("/srv/app/model.py", 31, "return self.forward(batch)")


@pytest.mark.parametrize("broken", ["{", "[]", '{"type": 3}', "{}", '"' + "x" * 300_000 + '"', '{"type": "\\ud800'])
def test_details_that_cannot_be_parsed_are_left_out(broken: str) -> None:
    (task,) = failed_tasks([failed_row(details=broken, message="RpcError: Socket closed")])

    assert task.error == "RpcError: Socket closed"
    assert (task.file, task.line) == (None, None)


def test_a_task_has_its_last_attempt() -> None:
    rows = [failed_row(attempt=1, failed_at=NOW + 1), failed_row(attempt=0), failed_row(attempt=2, failed_at=NOW + 2)]

    (task,) = failed_tasks(rows)

    assert (task.attempt, task.failed_at) == (2, NOW + 2)


def test_the_newest_failed_tasks_are_kept() -> None:
    rows = [failed_row(task_id=f"{i:048x}", failed_at=NOW + i) for i in range(MAX_TASKS + 50)]

    found = failed_tasks(rows)

    assert [task.failed_at for task in found] == [NOW + i for i in reversed(range(50, MAX_TASKS + 50))]


def test_unknown_enum_values_and_times_are_empty() -> None:
    (task,) = failed_tasks([failed_row(error_type=9999, failed_at=0.0)])

    assert (task.error_type, task.failed_at, task.error) == ("", None, "")


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("<class 'app.Outer.<locals>.Bad'>", "no room", "Bad: no room"),
        ("<class 'KeyError'>", "", "KeyError"),
        ("<class 'ValueError'>", "v" * 1000, "ValueError: " + "v" * (MAX_ERROR - 12)),
        ("<class 'ray.exceptions.RayTaskError(KeyError)'>", TRACEBACK, "RuntimeError: out of memory"),
        ("no class", "x", "no class: x"),
    ],
)
def test_an_exception_is_named_by_its_class_without_its_module(kind: str, value: str, error: str) -> None:
    (task,) = failed_tasks([failed_row(details=details(type=kind, value=value))])

    assert task.error == error


def test_the_position_is_that_of_the_last_exception() -> None:
    cause = '  File "/srv/app/cause.py", line 1, in f\nKeyError: 1\n\nThe above exception was the direct cause of the'
    chained = f'{cause} following exception:\n\n  File "/srv/app/outer.py", line 2, in g\nValueError: 2\n'

    assert innermost_place(chained) == TracebackLine("/srv/app/outer.py", 2)
    assert first_line_of_error(chained) == "ValueError: 2"


def test_a_message_without_a_traceback_is_its_first_line() -> None:
    died = "The actor is dead. Some common causes include: (1) the process was killed by the OOM killer"

    assert first_line_of_error(died) == "The actor is dead."
    assert first_line_of_error("User exception:\nray::f() (pid=7)\n   ^^^\nKeyError: 'inner'\n") == "KeyError: 'inner'"
    assert innermost_place("no traceback at all") is None


NOW = 1.7e9
JOB, DRIVER = "01000000", "f" * 40 + "01000000"
TASK, CALL = "1a" * 8 + "f" * 24 + JOB, "2b" * 8 + "3c" * 12 + JOB


def row(task_id: str, states: dict[str, float], *, kind: int = common_pb2.NORMAL_TASK, attempt: int = 0) -> Any:
    made = gcs_pb2.TaskEvents(task_id=bytes.fromhex(task_id), job_id=bytes.fromhex(JOB), attempt_number=attempt)
    made.task_info.name, made.task_info.type = "step", kind
    made.task_info.parent_task_id = bytes.fromhex(DRIVER)
    for state, at in states.items():
        made.state_updates.state_ts_ns[common_pb2.TaskStatus.Value(state)] = int((NOW + at) * 1e9)
    return made


def history(*rows: Any, **figures: int) -> TaskHistory:
    return history_of(gcs_service_pb2.GetTaskEventsReply(events_by_task=rows, **figures), NOW + 100)


def test_an_attempt_has_its_times_its_worker_and_its_caller() -> None:
    made = row(CALL, {"PENDING_ARGS_AVAIL": 1, "SUBMITTED_TO_WORKER": 2, "RUNNING": 3}, kind=common_pb2.ACTOR_TASK)
    made.task_info.actor_id = bytes.fromhex(CALL[16:])
    made.task_info.required_resources["CPU"] = 1.0
    made.state_updates.worker_id = made.state_updates.node_id = b"\xab" * 28
    made.state_updates.worker_pid = 77

    (attempt,) = history(made).attempts

    assert (attempt.task_id, attempt.name, attempt.kind, attempt.job_id) == (CALL, "step", "ACTOR_TASK", JOB)
    assert (attempt.actor_id, attempt.parent_task_id) == (CALL[16:], DRIVER)
    assert (attempt.worker_id, attempt.node_id, attempt.pid) == ("ab" * 28, "ab" * 28, 77)
    assert {state: round(at - NOW) for state, at in attempt.states.items()} == {
        "PENDING_ARGS_AVAIL": 1,
        "SUBMITTED_TO_WORKER": 2,
        "RUNNING": 3,
    }
    assert attempt.required_resources == {"CPU": 1.0}


def test_attempts_are_in_the_order_of_their_beginning() -> None:
    found = history(
        row(CALL, {"PENDING_ARGS_AVAIL": 2}),
        row(TASK, {"PENDING_ARGS_AVAIL": 5}, attempt=1),
        row(TASK, {"PENDING_ARGS_AVAIL": 1, "FAILED": 4}),
    ).attempts

    assert [(one.task_id, one.attempt) for one in found] == [(TASK, 0), (CALL, 0), (TASK, 1)]


def test_a_failed_attempt_has_its_error() -> None:
    made = row(TASK, {"RUNNING": 1, "FAILED": 2})
    made.state_updates.error_info.error_type = common_pb2.TASK_EXECUTION_EXCEPTION
    made.state_updates.error_info.error_message = (
        'User exception:\nray::f()\n  File "f.py", line 3, in f\nValueError: no'
    )

    (attempt,) = history(made).attempts

    assert (attempt.error_type, attempt.error) == ("TASK_EXECUTION_EXCEPTION", "ValueError: no")


def test_an_attempt_without_a_time_or_of_an_unknown_kind_is_left_out() -> None:
    strange = row(TASK, {"RUNNING": 1})
    strange.task_info.type = 77

    assert history(row(TASK, {}), strange).attempts == ()


def test_the_figures_tell_apart_what_was_not_requested_and_what_was_dropped() -> None:
    found = history(num_total_stored=90, num_truncated=50, num_status_task_events_dropped=57)

    assert (found.kept, found.left_out, found.dropped) == (90, 50, 7)


@pytest.mark.parametrize("figure", ["num_total_stored", "num_truncated", "num_status_task_events_dropped"])
def test_a_negative_figure_counts_as_none(figure: str) -> None:
    found = history(**{figure: -1})

    assert (found.kept, found.left_out, found.dropped) == (0, 0, 0)


def test_the_bytes_of_a_task_are_those_of_its_live_objects_each_once() -> None:
    first, second = TASK + "01000000", TASK + "02000000"
    refs = [
        Ref(ref=first, holder_id="owner", size_bytes=10),
        Ref(ref=first, holder_id="borrower", size_bytes=-1),
        Ref(ref=first, holder_id="another", size_bytes=10),
        Ref(ref=second, holder_id="owner", size_bytes=5),
        Ref(ref=CALL + "01000000", holder_id="owner", size_bytes=-1),
        Ref(ref="f" * 16 + TASK[16:] + "01000000", holder_id="owner", size_bytes=9),
    ]

    assert object_bytes(refs) == {TASK: 15}


def test_without_a_reply_there_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def call_all(calls: Sequence[UnaryCall], metadata: Any) -> list[Any]:
        assert [call.message().limit for call in calls] == [9]
        return [CallFailure("no answer within 1.0 s", "timeout")]

    monkeypatch.setattr(event_source, "call_all", call_all)

    found, failure = ask_history(Cluster("127.0.0.1:1", "2.60.0"), 9, 1.0)

    assert found is None
    assert failure is not None
    assert (failure.stage, failure.cause) == ("task events", "timeout")
    assert "history of tasks" in failure.reason


LIVE, DEAD = Job(job_id="02000000"), Job(job_id="01000000", is_dead=True)
CLUSTER = Cluster("127.0.0.1:1", "2.60.0")


class Gcs:
    """The replies of the GCS for each state, and its requests."""

    def __init__(self, **replies: Any) -> None:
        self.replies = replies
        self.requests: dict[str, Any] = {}

    def call_all(self, calls: Sequence[UnaryCall], metadata: Any) -> list[Any]:
        if calls[0].method != "GetTaskEvents":
            return [CallFailure("there is no dashboard head", "missing") for _ in calls]
        for call in calls:
            (state,) = call.message().filters.state_filters
            self.requests[state.state] = call.message()
        return [self.replies.get(state, gcs_service_pb2.GetTaskEventsReply()) for state in self.requests]


def ended(job: Job, state: str, task_id: str = "1a" * 24) -> Any:
    made = gcs_pb2.TaskEvents(task_id=bytes.fromhex(task_id), job_id=bytes.fromhex(job.job_id))
    made.task_info.name, made.task_info.type = "Worker.step", common_pb2.ACTOR_TASK
    made.state_updates.state_ts_ns[common_pb2.TaskStatus.Value(state)] = int(NOW * 1e9)
    return made


def asked(monkeypatch: pytest.MonkeyPatch, gcs: Gcs, jobs: Sequence[Job] = (LIVE, DEAD)) -> task_events.EndedTasks:
    monkeypatch.setattr(event_source, "call_all", gcs.call_all)
    return ask_ended_tasks(CLUSTER, jobs, 1.0, NOW)


def test_only_live_jobs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {state: [ended(job, state) for job in (LIVE, DEAD)] for state in ("FAILED", "FINISHED")}
    replies = {
        state: gcs_service_pb2.GetTaskEventsReply(events_by_task=made, num_total_stored=4, num_truncated=1)
        for state, made in rows.items()
    }

    found = asked(monkeypatch, Gcs(**replies))

    assert [task.job_id for task in found.failed] == [LIVE.job_id]
    assert found.window is not None
    assert (found.window.kept, found.window.read, found.window.is_limited) == (4, 1, True)
    assert (found.window.oldest_at, found.window.last_ended_at) == (NOW, {LIVE.job_id: NOW})
    assert found.window.recent[LIVE.job_id].tasks == 1


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
    failed = gcs_service_pb2.GetTaskEventsReply(events_by_task=[ended(LIVE, "FAILED")])
    late = CallFailure("no answer within 1.0 s", "timeout")

    found = asked(monkeypatch, Gcs(FAILED=failed, FINISHED=late))
    neither = asked(monkeypatch, Gcs(FAILED=late, FINISHED=late))

    assert ([task.name for task in found.failed], found.repeated, found.window) == (["Worker.step"], (), None)
    assert neither == task_events.EndedTasks()


def test_a_failed_task_is_held_while_a_process_has_its_ref_and_not_failed_while_it_is_retried() -> None:
    record = Observations(began=time.monotonic())
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
