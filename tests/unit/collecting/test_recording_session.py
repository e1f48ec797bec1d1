"""None"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import pytest

from dstack.collecting.recording_session import Attribution, converted, task_function
from dstack.model.recording import Recording
from dstack.model.snapshot import Actor, Job, Node, Snapshot, Worker
from dstack.observed.node import Count, Failure, RecordedRound, RecordingCoverage, SampledThread
from dstack.observed.processes import Frame
from dstack.probes.node_access.answers import MalformedAnswer, unpacked_round

ENTRY = Frame(function="<module>", file="/v/ray/_private/workers/default_worker.py", line=323, origin="ray")
LOOP = Frame(function="Worker.main_loop", file="/v/ray/_private/worker.py", line=1069, origin="ray")
TRACING = Frame(function="_function_span", file="/v/ray/util/tracing/tracing_helper.py", line=1, origin="ray")
MAIN_IN_C = Frame(function="main", file="python3.11", line=0, origin="library")
LOAD = Frame(function="module.<locals>.load", file="/app/data.py", line=7)
IN_SPAN = Frame(function="span.__call__.<locals>.in_span", file="/v/dstack/spans.py", line=69, origin="library")
MAP = Frame(function="_map_task", file="/v/ray/data/map_operator.py", line=7, origin="ray")
PLACE: dict[str, Any] = {"node_id": "n" * 56, "ip": "10.0.0.1", "job_id": "01000000"}
WORKERS = (
    Worker(worker_id="d", port=1, pid=1, is_driver=True, **PLACE),
    Worker(worker_id="t", port=2, pid=2, **PLACE),
    Worker(worker_id="a", port=3, pid=3, actor_id="f0", **PLACE),
)
CLUSTER = Snapshot(
    dstack_version="0",
    taken_at=0,
    address="10.0.0.1:6379",
    ray_version="2.60.0",
    nodes=(Node(node_id="n" * 56, ip="10.0.0.1"),),
    jobs=(Job(job_id="01000000", entrypoint="python train.py"),),
    actors=(Actor(actor_id="f0", job_id="01000000", class_name="Trainer", state="ALIVE", name="one"),),
    workers=WORKERS,
)
FIRST = Recording(dstack_version="0", address="", ray_version="", began_at=0)
COVERAGE = RecordingCoverage(wanted=20, taken=19, torn=1, cut=2, sampler_cpu_s=0.01, lowest_rate_hz=20.0)
ROUND = RecordedRound(
    frames=(Frame(function="step", file="train.py", line=3),),
    stacks=((0,),),
    threads=(
        SampledThread(worker_id="a", os_thread_id=3, thread_name="MainThread"),
        SampledThread(worker_id="probe", os_thread_id=9, thread_name="MainThread"),
    ),
    counts=(Count(0, 0, 5), Count(1, 0, 7)),
    ranks={"a": 3},
    coverage=COVERAGE,
    failures=(
        Failure(stage="process", reason="the process has ended", cause="ended", worker_id="t"),
        Failure(stage="memory", reason="no permission", cause="permission", worker_id="d", pid=1),
    ),
    seconds=1.0,
)


@pytest.mark.parametrize(
    ("outermost_first", "function"),
    [
        ([ENTRY, LOOP, LOAD], "load"),
        ([ENTRY, LOOP, TRACING, LOAD], "load"),
        ([MAIN_IN_C, ENTRY, LOOP, MAIN_IN_C, LOAD], "load"),
        ([ENTRY, LOOP, IN_SPAN, LOAD], "load"),
        ([ENTRY, LOOP, MAP, LOAD], "_map_task"),
        ([ENTRY, LOOP], ""),
        ([LOAD], ""),
        ([], ""),
    ],
)
def test_the_function_of_a_task_is_called_by_the_loop_of_its_worker(
    outermost_first: list[Frame], function: str
) -> None:
    assert task_function(outermost_first[::-1]) == function


@pytest.mark.parametrize(
    ("worker_id", "stack", "kind"),
    [
        ("a", [LOAD, LOOP, ENTRY], "actor Trainer"),
        ("t", [LOAD, LOOP, ENTRY], "task load"),
        ("t", [LOAD], "worker"),
        ("d", [LOAD], "driver train.py"),
    ],
)
def test_a_thread_has_the_work_of_its_worker(worker_id: str, stack: list[Frame], kind: str) -> None:
    sampled = SampledThread(worker_id=worker_id, os_thread_id=5, thread_name="MainThread")
    thread = Attribution(CLUSTER).thread(sampled, stack, None)

    assert thread is not None
    assert (thread.kind, thread.node, thread.job_id) == (kind, "node 10.0.0.1", "01000000")


def test_a_round_becomes_a_recording_of_the_application() -> None:
    found = converted(FIRST, ROUND, Attribution(CLUSTER))

    (thread,) = found.threads
    assert (thread.name, thread.rank, thread.pid, thread.os_thread_id) == ("one", 3, 3, 3)
    assert [(count.thread, count.stack, count.samples) for count in found.counts] == [(0, 0, 5)]
    assert found.coverage == COVERAGE
    assert [(failure.reason, failure.node_id) for failure in found.failures] == [("no permission", "n" * 56)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"counts": [(2, 0, 1, True)]},
        {"counts": [(0, 1, 1, True)]},
        {"counts": [(0, 0, -1, True)]},
        {"counts": [(-1, 0, 1, True)]},
        {"stacks": [[1]]},
        {"stacks": [[-1]]},
        {"frames": [{"function": "f", "file": "f", "line": 2**70, "origin": "user"}]},
        {"frames": [{"function": "f", "file": "f", "line": 1, "origin": "elsewhere"}]},
    ],
)
def test_malformed_rounds_are_rejected(wrong: dict[str, Any]) -> None:
    plain = {**msgspec.to_builtins(ROUND), **wrong}

    with pytest.raises((MalformedAnswer, LookupError)):
        converted(FIRST, unpacked_round(zlib.compress(msgspec.json.encode(plain))), Attribution(CLUSTER))
