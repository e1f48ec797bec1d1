"""Failed tasks are read from synthetic rows of the GCS's task events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dstack.probes.connection.ray_stubs import common_pb2, gcs_pb2
from dstack.probes.ray_state.task_rows import (
    MAX_ERROR,
    MAX_TASKS,
    Place,
    failed_tasks,
    first_line_of_error,
    innermost_place,
)

TASK, ACTOR, JOB, WORKER, NODE = "1a" * 24, "2b" * 16, "01000000", "3c" * 28, "4d" * 28
NOW = 1.7e9
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


def row(**fields: Any) -> Any:
    """A failed actor call's row; ``details`` is the JSON that its executor reported, if any."""
    made = gcs_pb2.TaskEvents(
        task_id=bytes.fromhex(fields.get("task_id", TASK)),
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
    (task,) = failed_tasks([row(details=details())])

    assert (task.task_id, task.name, task.job_id, task.actor_id) == (TASK, "Worker.execute_model", JOB, ACTOR)
    assert (task.worker_id, task.node_id, task.pid, task.failed_at) == (WORKER, NODE, 7, NOW)
    assert task.error_type == "TASK_EXECUTION_EXCEPTION"
    assert task.error == "RuntimeError: out of memory"
    assert (task.file, task.line, task.source) == ("/srv/app/model.py", 31, "return self.forward(batch)")


def test_the_end_of_the_message_is_the_fallback_for_the_executors_traceback() -> None:
    message = f"User exception:\n\x1b[36mray::Worker.execute_model()\x1b[39m (pid=7, ip=10.0.0.1)\n{TRACEBACK}"

    (task,) = failed_tasks([row(message=message)])

    assert task.error == "RuntimeError: out of memory"
    assert (task.file, task.line, task.source) == ("/srv/app/model.py", 31, "return self.forward(batch)")


@pytest.mark.parametrize("broken", ["{", "[]", '{"type": 3}', "{}", '"' + "x" * 300_000 + '"', '{"type": "\\ud800'])
def test_details_that_cannot_be_parsed_are_left_out(broken: str) -> None:
    (task,) = failed_tasks([row(details=broken, message="RpcError: Socket closed")])

    assert task.error == "RpcError: Socket closed"
    assert (task.file, task.line) == (None, None)


def test_a_task_has_its_last_attempt() -> None:
    rows = [row(attempt=1, failed_at=NOW + 1), row(attempt=0), row(attempt=2, failed_at=NOW + 2)]

    (task,) = failed_tasks(rows)

    assert (task.attempt, task.failed_at) == (2, NOW + 2)


def test_the_newest_failed_tasks_are_kept() -> None:
    rows = [row(task_id=f"{i:048x}", failed_at=NOW + i) for i in range(MAX_TASKS + 50)]

    found = failed_tasks(rows)

    assert [task.failed_at for task in found] == [NOW + i for i in reversed(range(50, MAX_TASKS + 50))]


def test_unknown_enum_values_and_times_are_empty() -> None:
    (task,) = failed_tasks([row(error_type=9999, failed_at=0.0)])

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
    (task,) = failed_tasks([row(details=details(type=kind, value=value))])

    assert task.error == error


def test_the_position_is_that_of_the_last_exception() -> None:
    cause = '  File "/srv/app/cause.py", line 1, in f\nKeyError: 1\n\nThe above exception was the direct cause of the'
    chained = f'{cause} following exception:\n\n  File "/srv/app/outer.py", line 2, in g\nValueError: 2\n'

    assert innermost_place(chained) == Place("/srv/app/outer.py", 2)
    assert first_line_of_error(chained) == "ValueError: 2"


def test_a_message_without_a_traceback_is_its_first_line() -> None:
    died = "The actor is dead. Some common causes include: (1) the process was killed by the OOM killer"

    assert first_line_of_error(died) == "The actor is dead."
    assert first_line_of_error("User exception:\nray::f() (pid=7)\n   ^^^\nKeyError: 'inner'\n") == "KeyError: 'inner'"
    assert innermost_place("no traceback at all") is None
