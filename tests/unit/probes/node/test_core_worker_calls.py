"""Requests to many core workers, of which some do not answer."""

from __future__ import annotations

import time
from typing import Any

import psutil
import pytest

from dstack.observed.node import ObjectPlace
from dstack.probes.connection import ray_stubs
from dstack.probes.connection.ray_stubs import common_pb2
from dstack.probes.node.core_worker_calls import MAX_AT_ONCE, CoreWorkers
from dstack.probes.node.wire import Questions
from tests.processes import wait_until
from tests.unit.support.core_worker_servers import ACTOR, JOB, NODE, QUESTIONS, CoreWorkerServer, serving, silent_port


def test_all_core_workers_answer_and_get_the_token() -> None:
    questions: Questions = {**QUESTIONS, "metadata": [("authorization", "Bearer t")], "limit": 7}
    with serving(CoreWorkerServer()) as server:
        workers = [server.worker(number) for number in range(3)]
        replies = CoreWorkers(lambda: ray_stubs).ask(workers, questions)

    assert replies.failures == []
    assert [replies.found[worker["worker_id"]].job_id for worker in workers] == [JOB] * 3
    assert replies.found[workers[0]["worker_id"]].actor_id == ACTOR
    assert [one["authorization"] for one in server.metadata] == ["Bearer t"] * 3
    assert {(one.limit, one.include_task_info, one.include_memory_info) for one in server.requests} == {(7, True, True)}


def test_connections_are_kept_between_requests() -> None:
    core_workers = CoreWorkers(lambda: ray_stubs)
    with serving(CoreWorkerServer()) as server:
        workers = [server.worker(number) for number in range(3)]
        for _ in range(2):
            assert len(core_workers.ask(workers, QUESTIONS).found) == 3
        assert len(server.peers) == 6
        assert len(set(server.peers)) == 3
        core_workers.close()


def test_a_worker_is_asked_again_at_once_when_it_is_back() -> None:
    """A channel that has failed pauses before it connects again, so it is replaced."""
    core_workers = CoreWorkers(lambda: ray_stubs)
    with serving(CoreWorkerServer()) as server:
        worker = server.worker()
        assert core_workers.ask([worker], QUESTIONS).failures == []
    (failure,) = core_workers.ask([worker], QUESTIONS).failures
    with serving(CoreWorkerServer(), port=worker["port"]):
        again = core_workers.ask([worker], QUESTIONS)
        core_workers.close()

    assert failure.cause == "unreachable"
    assert f"127.0.0.1:{worker['port']}" in failure.reason
    assert (failure.stage, failure.worker_id, failure.pid) == ("core worker", worker["worker_id"], 1000)
    assert list(again.found) == [worker["worker_id"]]


def test_a_worker_that_does_not_answer_delays_no_other_one() -> None:
    questions: Questions = {**QUESTIONS, "timeout_s": 1.0}
    began = time.monotonic()
    with serving(CoreWorkerServer()) as server, silent_port() as port:
        silent = {**server.worker(9), "port": port}
        replies = CoreWorkers(lambda: ray_stubs, kept=0).ask([silent, server.worker(1)], questions)  # type: ignore[list-item]

    assert time.monotonic() - began < 10
    assert list(replies.found) == [server.worker(1)["worker_id"]]
    (failure,) = replies.failures
    assert (failure.worker_id, failure.cause, failure.elapsed_s) == (silent["worker_id"], "timeout", 1.0)


def test_no_request_outlasts_the_deadline() -> None:
    """More workers than are asked at once, so that some are never asked."""
    began = time.monotonic()
    with silent_port() as port:
        workers = [{**CoreWorkerServer().worker(number), "port": port} for number in range(MAX_AT_ONCE + 6)]
        replies = CoreWorkers(lambda: ray_stubs, kept=0).ask(workers, QUESTIONS, deadline=began + 1.0)  # type: ignore[arg-type]

    assert time.monotonic() - began < 10
    assert replies.found == {}
    assert {failure.cause for failure in replies.failures} == {"timeout"}
    assert sum("not asked" in failure.reason for failure in replies.failures) == 6
    assert len({failure.worker_id for failure in replies.failures}) == MAX_AT_ONCE + 6


def test_the_number_of_requests_and_connections_at_the_same_time_is_bounded() -> None:
    own = psutil.Process()
    core_workers = CoreWorkers(lambda: ray_stubs, kept=5)
    with serving(CoreWorkerServer(delay_s=0.3), threads=3 * MAX_AT_ONCE) as server:
        workers = [server.worker(number) for number in range(3 * MAX_AT_ONCE)]
        before = own.num_fds()
        replies = core_workers.ask(workers, QUESTIONS)
        assert len(replies.found) == len(workers)
        assert 10 < server.most_at_once <= MAX_AT_ONCE
        left = 2 * 5  # both ends are in this process
        wait_until(lambda: own.num_fds() <= before + left, deadline_s=60, what=lambda: f"{own.num_fds()} {before}")
        core_workers.close()


def another_worker(request: Any, reply: Any) -> None:
    reply.core_worker_stats.worker_id = b"z" * 28


def without_id(request: Any, reply: Any) -> None:
    """As the reply of a Ray with other numbers of fields."""
    reply.core_worker_stats.worker_id = b""


def cut_tasks(request: Any, reply: Any) -> None:
    reply.tasks_total = 3


def cut_refs(request: Any, reply: Any) -> None:
    reply.core_worker_stats.objects_total = 2


def unknown_kind(request: Any, reply: Any) -> None:
    reply.owned_task_info_entries.add(task_id=b"t" * 24, type=999, scheduling_state=common_pb2.SUBMITTED_TO_WORKER)
    reply.tasks_total = 1


def rejected(request: Any, reply: Any) -> None:
    raise PermissionError


@pytest.mark.parametrize(
    ("fill", "cause", "reason", "is_used"),
    [
        (another_worker, "ended", "another worker uses its port", False),
        (without_id, "malformed", "another form than in the Ray beside dstack", False),
        (cut_tasks, "truncated", "only 0 of its 3 tasks", True),
        (cut_refs, "truncated", "only 0 of its 2 refs", True),
        (unknown_kind, "truncated", "of a kind that dstack does not know", True),
        (rejected, "permission", "rejects the token", False),
    ],
)
def test_each_failure_has_its_cause(fill: Any, cause: str, reason: str, *, is_used: bool) -> None:
    with serving(CoreWorkerServer(fill)) as server:
        replies = CoreWorkers(lambda: ray_stubs, kept=0).ask([server.worker()], QUESTIONS)

    (failure,) = replies.failures
    assert failure.cause == cause
    assert reason in failure.reason
    assert len(replies.found) == is_used


def with_values(_: Any, reply: Any) -> None:
    """A finished task's values, of which one is small, and one that another worker owns."""
    finished = common_pb2.FINISHED
    for number, size in enumerate((1 << 20, 3 << 20, 2 << 20, 100)):
        reply.core_worker_stats.object_refs.add(object_id=bytes([number]) * 28, object_size=size, task_status=finished)
    reply.core_worker_stats.object_refs.add(object_id=b"o" * 28, object_size=9 << 20)
    reply.core_worker_stats.objects_total = 5


def test_an_owner_is_asked_where_its_largest_values_are() -> None:
    with serving(CoreWorkerServer(with_values)) as server:
        worker = server.worker()
        replies = CoreWorkers(lambda: ray_stubs).ask([worker], {**QUESTIONS, "places": 2})

    assert replies.failures == []
    largest, second = (bytes([number]).hex() * 28 for number in (1, 2))
    node = NODE.hex()
    assert replies.found[worker["worker_id"]].places == {
        largest: ObjectPlace(node_ids=(node,), is_spilled=True, spilled_on=node),
        second: ObjectPlace(is_spilled=True, spilled_on=node),
    }
    assert len(server.requests) == 2


def test_an_owner_that_does_not_say_where_its_values_are_has_answered() -> None:
    with serving(CoreWorkerServer(with_values, has_no_places=True)) as server:
        worker = server.worker()
        replies = CoreWorkers(lambda: ray_stubs).ask([worker], {**QUESTIONS, "places": 2})

    assert (replies.failures, replies.found[worker["worker_id"]].places) == ([], {})
    assert len(replies.found[worker["worker_id"]].refs) == 5


def test_nothing_is_asked_about_places_by_default() -> None:
    with serving(CoreWorkerServer(with_values)) as server:
        CoreWorkers(lambda: ray_stubs).ask([server.worker()], QUESTIONS)

    assert len(server.requests) == 1
