"""Unreadable processes: their list, and the effect of a pause."""

from __future__ import annotations

import pytest

from dstack.model.snapshot import Worker, WorkerSample
from dstack.observed.node import Cause, Failure, Stage
from dstack.observed.processes import Process, Thread
from dstack.probes.node_access.ray_agents import completed, unknown_waits, unread_workers, with_pause_as_remedy

THREAD = Thread(os_thread_id=1, name="t", stack=0, role="user")
READ = Process(pid=1, started_at=1.0, cpu_s=2.0, threads=(THREAD,))
EMPTY = Process(pid=1, started_at=1.0, cpu_s=2.0)
AS_TEXT = Process(pid=1, started_at=0.0, access="text stack", paused_ms=9.0, threads=(THREAD,))


def worker(name: str, node: str = "n") -> Worker:
    return Worker(worker_id=name, node_id=node, ip="10.0.0.1", port=1, pid=1)


def failure(stage: Stage, cause: Cause, worker_id: str | None = "w", sample: int = 1) -> Failure:
    return Failure(stage=stage, reason="any", cause=cause, worker_id=worker_id, node_id="n", sample=sample)


def test_unread_workers_have_a_process_and_no_stacks() -> None:
    workers = [worker("read"), worker("empty"), worker("unseen"), worker("ended")]
    failures = [failure("process", "ended", "ended"), failure("stacks", "permission", "empty")]

    unread = unread_workers(workers, {"read": READ, "empty": EMPTY}, failures)

    assert [one.worker_id for one in unread] == ["empty", "unseen"]


def test_stacks_of_an_agent_complete_the_figures_of_a_process() -> None:
    found = completed({"read": READ, "empty": EMPTY}, {"empty": AS_TEXT, "unseen": AS_TEXT})

    assert found["read"] == READ
    assert (found["empty"].cpu_s, found["empty"].access, found["empty"].paused_ms) == (2.0, "text stack", 9.0)
    assert found["unseen"] == AS_TEXT
    samples = [WorkerSample(worker_id=name, process=process) for name, process in found.items()]
    assert unknown_waits([*samples, WorkerSample(worker_id="none")]) == {"empty", "unseen", "none"}


@pytest.mark.parametrize(
    ("one", "is_suggested"),
    [
        (failure("stacks", "permission"), True),
        (failure("stacks", "missing"), True),
        (failure("stacks", "timeout"), False),
        (failure("stacks", "permission", "another"), False),
        (failure("stacks", "permission", sample=2), False),
        (failure("memory", "permission"), False),
        (failure("node probe", "timeout", None), True),
        (failure("node probe", "unreachable", None), False),
    ],
)
def test_a_pause_is_suggested_where_an_agent_may_help(one: Failure, is_suggested: bool) -> None:
    (found,) = with_pause_as_remedy([one], [worker("w")], {"n"}, sample=1)

    assert ("Use --pause: Ray's agent" in (found.remedy or "")) == is_suggested
    assert with_pause_as_remedy([one], [worker("w")], set(), sample=1) == [one]


def test_a_pause_is_suggested_beside_another_remedy() -> None:
    one = Failure(stage="stacks", reason="any", cause="permission", remedy="Run it as root.", worker_id="w")

    (found,) = with_pause_as_remedy([one], [worker("w")], {"n"}, sample=1)

    assert (
        found.remedy
        == "Run it as root. Or use --pause: Ray's agent can read the stacks while it pauses the process for some ms."
    )
