"""Live workers, and the requests to the GCS about them."""

from __future__ import annotations

import pytest

from dstack.model.snapshot import GoneWorker, Job, Node, Worker
from dstack.observed.node import Cause, CoreWorkerReply, Failure, Stage
from dstack.probes.ray_state.control_plane import Inventory
from dstack.probes.ray_state.liveness import Liveness

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
