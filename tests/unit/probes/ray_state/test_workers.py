"""Workers that are asked from this host, live workers, and the requests to the GCS about them."""

from __future__ import annotations

import time
from concurrent import futures

import grpc
import pytest
from ray.core.generated import core_worker_pb2_grpc

from dstack.model.snapshot import GoneWorker, Job, Node, Worker
from dstack.observed.node import Cause, CoreWorkerReply, Failure, Ref, Stage
from dstack.probes.ray_state.control_plane import Inventory
from dstack.probes.ray_state.workers import Liveness, ask_core_workers, questions, relevant_refs
from tests.unit.support.core_worker_servers import CoreWorkerServer


def test_a_worker_on_ipv6_answers() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    core_worker_pb2_grpc.add_CoreWorkerServiceServicer_to_server(CoreWorkerServer(), server)
    worker = Worker(worker_id="ab" * 28, node_id="n", ip="::1", port=server.add_insecure_port("[::1]:0"), pid=1)
    gone = Worker(worker_id="cd" * 28, node_id="m", ip="::1", port=1, pid=2)
    server.start()
    try:
        answers, failures = ask_core_workers(
            [worker, gone], questions((), timeout_s=30.0), time.monotonic() + 30.0, sample=2
        )
    finally:
        server.stop(0).wait()

    assert list(answers) == [worker.worker_id]
    (failure,) = failures
    assert (failure.node_id, failure.worker_id, failure.sample) == ("m", gone.worker_id, 2)
    assert failure.cause == "unreachable"


def test_refs_of_running_tasks_are_relevant_to_their_holders_only() -> None:
    """A watchdog can cancel the task with such a ref, though no wait needs it."""
    running, ended = "ab" * 24, "cd" * 24
    held = Ref(ref=f"{running}01000000", holder_id="driver", local_uses=1)
    others = (
        Ref(ref=f"{ended}01000000", holder_id="driver", local_uses=1),
        Ref(ref=f"{running}02000000", holder_id="driver", local_uses=0),
        Ref(ref=f"{running}03000000", holder_id="driver", local_uses=1, size_bytes=8),
        Ref(ref=f"{running}01e1f505", holder_id="driver", local_uses=1),  # of ray.put
    )
    driver = CoreWorkerReply(worker_id="driver", refs=(held, *others))
    executor = CoreWorkerReply(worker_id="executor", running_task_ids=(running,))

    assert relevant_refs([driver, executor], awaited=set()) == [held]


OWN, THEIRS, NEW = "01000000", "02000000", "03000000"


def worker(name: str, *, is_driver: bool = False, pid: int = 1) -> Worker:
    return Worker(worker_id=name, node_id="n", ip="10.0.0.1", port=1, pid=pid, is_driver=is_driver)


def inventory(*workers: Worker, own_drivers: frozenset[tuple[str, int]] = frozenset()) -> Inventory:
    return Inventory(
        nodes=(Node(node_id="n", ip="10.0.0.1"),),
        jobs=(Job(job_id=THEIRS),),
        own_jobs=frozenset({OWN}),
        own_drivers=own_drivers,
        workers=workers,
    )


def failure(name: str, stage: Stage, cause: Cause) -> Failure:
    return Failure(stage=stage, reason="any", cause=cause, worker_id=name)


def runs(name: str, job_id: str | None) -> dict[str, CoreWorkerReply]:
    return {name: CoreWorkerReply(worker_id=name, job_id=job_id)}


def test_workers_of_own_jobs_and_own_drivers_are_not_present() -> None:
    probe, driver, theirs = worker("a"), worker("b", is_driver=True, pid=7), worker("c")
    liveness = Liveness()
    liveness.note_listed(inventory(own_drivers=frozenset({("10.0.0.1", 7)})))
    liveness.note_answers({**runs("a", OWN), **runs("c", THEIRS)})

    assert liveness.present([probe, driver, theirs]) == [theirs]
    assert liveness.with_ids(theirs).job_id == THEIRS
    assert [job for job in (OWN, THEIRS, None) if liveness.is_own_job(job)] == [OWN]


def test_only_unlisted_jobs_are_requested_and_only_once() -> None:
    liveness = Liveness()
    liveness.note_listed(inventory())
    listed, new = {**runs("a", OWN), **runs("b", THEIRS), **runs("c", None)}, runs("d", NEW)
    assert liveness.unlisted_jobs(listed) == set()
    assert liveness.unlisted_jobs({**listed, **new}) == {NEW}

    liveness.requested_jobs.add(NEW)
    assert liveness.unlisted_jobs({**listed, **new}) == set()

    liveness.note_answers(new)
    liveness.note_listed(Inventory(own_jobs=frozenset({NEW})))
    assert liveness.present([worker("d")]) == []


def test_a_worker_that_timed_out_is_not_asked_again() -> None:
    liveness = Liveness()
    liveness.note_silent([failure("a", "core worker", "timeout"), failure("b", "core worker", "unreachable")])

    assert liveness.to_ask([worker("a"), worker("b")]) == [worker("b")]


@pytest.mark.parametrize(
    ("stage", "cause", "may_have_ended"),
    [
        ("core worker", "unreachable", True),
        ("core worker", "ended", True),
        ("stacks", "other", True),
        ("stacks", "permission", False),
        ("memory", "unreadable", False),
        ("core worker", "truncated", False),
    ],
)
def test_the_gcs_is_asked_only_about_failures_of_possibly_ended_workers(
    stage: Stage, cause: Cause, may_have_ended: bool
) -> None:
    assert Liveness().may_have_ended([failure("a", stage, cause)]) == may_have_ended


def test_an_ended_worker_is_absent_and_its_failures_are_ignored() -> None:
    ended, unlisted, there = worker("a"), worker("b"), worker("c")
    liveness = Liveness()
    failures = [
        failure("a", "process", "ended"),
        failure("b", "core worker", "unreachable"),
        failure("c", "core worker", "unreachable"),
        Failure(stage="node probe", reason="any", node_id="n"),
    ]
    liveness.note_ended(failures)
    assert not liveness.may_have_ended(failures[:1])
    liveness.note_alive(failures[1:3], inventory(there))

    assert liveness.present([ended, unlisted, there]) == [there]
    assert liveness.concern(failures, [ended, unlisted, there]) == tuple(failures[2:])


def test_dead_owners_are_named_in_the_order_of_their_ids() -> None:
    liveness = Liveness()
    ended = {name: GoneWorker(worker_id=name, node_id="n", pid=1) for name in "cab"}
    liveness.note_listed(Inventory(gone_workers=ended))

    assert [one.worker_id for one in liveness.gone_among(["c", "x", "a"])] == ["a", "c"]
