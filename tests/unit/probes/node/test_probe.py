"""Core workers are asked while processes are read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from dstack.probes.connection import ray_stubs
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import CoreWorker, NodeRequest
from dstack.probes.node_access.answers import unpacked
from tests.sampling import OPTIONS, target
from tests.unit.support.core_worker_servers import (
    ACTOR,
    JOB,
    NIL_JOB,
    QUESTIONS,
    CoreWorkerServer,
    serving,
    silent_port,
)


def request(*workers: CoreWorker, reads: bool = True, **options: Any) -> NodeRequest:
    """A request that also reads this process, unless ``reads`` is false."""
    targets = [target(os.getpid())] if reads else []
    return {
        "is_first": True,
        "workers": [*workers],
        "questions": QUESTIONS,
        "targets": targets,
        "options": {**OPTIONS, **options},  # type: ignore[typeddict-item]
    }


class Idle:
    """A worker without a job when it is first asked, and with one from then on."""

    asked = 0

    def __call__(self, request: Any, reply: Any) -> None:
        self.asked += 1
        if self.asked == 1:
            reply.core_worker_stats.job_id, reply.core_worker_stats.actor_id = NIL_JOB, b"\xff" * 16
            reply.core_worker_stats.num_executed_tasks = 3


def test_an_answer_has_processes_and_core_workers() -> None:
    with serving(CoreWorkerServer()) as server:
        answer = NodeProbe(lambda: ray_stubs).answer(request(server.worker(1), server.worker(2)))

    assert answer.processes["w"].threads
    assert sorted(answer.core_workers) == sorted(server.worker(number)["worker_id"] for number in (1, 2))
    assert len(server.requests) == 2
    assert answer.cannot_ask is None


def test_a_worker_that_was_idle_is_asked_for_its_job_again() -> None:
    with serving(CoreWorkerServer(Idle())) as server:
        answer = NodeProbe(lambda: ray_stubs).answer(request(server.worker()))

    (reply,) = answer.core_workers.values()
    assert (reply.job_id, reply.actor_id, reply.executed_tasks) == (JOB, ACTOR, 3)
    assert len(server.requests) == 2


def test_a_poll_asks_an_idle_worker_once() -> None:
    with serving(CoreWorkerServer(Idle())) as server:
        answer = NodeProbe(lambda: ray_stubs).answer(request(server.worker(), reads=False))

    (reply,) = answer.core_workers.values()
    assert reply.job_id is None
    assert len(server.requests) == 1


def test_failures_of_core_workers_are_in_the_answer() -> None:
    with serving(CoreWorkerServer()) as server:
        worker = server.worker()
    answer = NodeProbe(lambda: ray_stubs).answer(request(worker))

    (failure,) = answer.failures
    assert (failure.stage, failure.cause, failure.worker_id) == (
        "core worker",
        "unreachable",
        worker["worker_id"],
    )
    assert answer.core_workers == {}


def test_a_core_worker_that_hangs_does_not_delay_the_answer_past_its_deadline() -> None:
    began = time.monotonic()
    with silent_port() as port:
        worker: CoreWorker = {**CoreWorkerServer().worker(), "port": port}
        answer = NodeProbe(lambda: ray_stubs).answer(request(worker, deadline_s=1.0))

    assert time.monotonic() - began < 20  # QUESTIONS allow 60 s
    assert [failure.cause for failure in answer.failures] == ["timeout"]
    assert answer.processes["w"].threads


WITHOUT_GRPC = """
import json, sys, zlib
sys.modules["grpc"] = None  # an import fails, as after `pip install ray`
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import packed
sys.stdout.buffer.write(packed(NodeProbe().answer(json.loads(sys.stdin.read()))))
"""


def test_a_node_without_grpc_says_so_and_reads_processes() -> None:
    asked = request(CoreWorkerServer().worker())
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_GRPC], input=json.dumps(asked).encode(), capture_output=True, check=False
    )

    assert done.returncode == 0, done.stderr
    answer = unpacked(done.stdout)
    assert answer.cannot_ask == "the Python module grpc is not installed there"
    assert answer.core_workers == {}
    assert answer.processes["w"].threads


class Rejected:
    """Modules that were generated for another protobuf, as a job's runtime environment may bring."""

    def __getattr__(self, name: str) -> Any:
        raise TypeError("Descriptors cannot be created directly.")


def test_modules_that_cannot_be_imported_are_a_reason() -> None:
    answer = NodeProbe(Rejected).answer(request(CoreWorkerServer().worker()))

    assert "TypeError: Descriptors cannot be created directly" in (answer.cannot_ask or "")


def test_without_core_workers_to_ask_nothing_is_imported() -> None:
    answer = NodeProbe(Rejected).answer(request())

    assert answer.core_workers == {}
    assert answer.cannot_ask is None
