"""The dependencies of a wait at an end of a vLLM message queue, by the ends that processes have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from dstack.analysis.naming.sentences import queue_in_words
from dstack.libraries.vllm import READ, WRITE
from dstack.model.diagnosis import Diagnosis
from dstack.observed.calls import Call as BlockedCall
from dstack.observed.calls import Holder, QueueCall
from dstack.observed.processes import Frame, QueueEnd
from tests.unit.scenes import Scene, SceneProcess, groups_of

QUEUE = "psm_1"
INSIDE = Frame(function="acquire_read", file="/lib/vllm/distributed/device_communicators/shm_broadcast.py", line=3)


def has_end(proc: SceneProcess, rank: int | None, name: str = QUEUE) -> None:
    """Its memory leads to this end of a queue."""
    proc.known["queue_ends"] = (*proc.known.get("queue_ends", ()), QueueEnd(name=name, rank=rank))


def waits(proc: SceneProcess, rank: int | None, *others: SceneProcess, name: str = QUEUE, **known: Any) -> None:
    """Waits at its end of a queue, which the others have open, too."""
    pids = {one.worker.pid for one in (proc, *others)}
    holders = tuple(Holder(pid=pid) for pid in sorted({*pids, *known.pop("strangers", ())}))
    need = QueueCall(name=name, rank=rank, began=7.0, ranks=(0, 1), holders=holders, **known)
    proc.threads[0].call = BlockedCall(site=(WRITE if rank is None else READ).id, frame=0, need=need)
    proc.threads[0].leaf = INSIDE


@dataclass
class Engine:
    """A driver that writes to two actors, which are in ``Worker.run``."""

    scene: Scene
    driver: SceneProcess
    workers: tuple[SceneProcess, SceneProcess]

    @property
    def all(self) -> tuple[SceneProcess, ...]:
        return (self.driver, *self.workers)

    def read(self, **known: Any) -> None:
        for rank, worker in enumerate(self.workers):
            waits(worker, rank, *self.all, unread=(0, 0), **known)

    def diagnose(self) -> Diagnosis:
        return self.scene.sample().sample().diagnose()


def engine() -> Engine:
    scene = Scene()
    driver, *workers = scene.driver(), scene.actor("Worker"), scene.actor("Worker")
    for rank, worker in enumerate(workers):
        worker.runs(scene.call(worker, "run", by=driver))
        has_end(worker, rank)
    has_end(driver, None)
    return Engine(scene, driver, (workers[0], workers[1]))


# Reads


def test_a_reader_waits_for_the_process_of_the_writer() -> None:
    it = engine()
    it.read()

    assert groups_of(it.scene.wait_of(it.workers[1])) == [(1, [it.driver.key])]


def test_a_reader_behind_a_writer_that_calls_it_is_a_deadlock() -> None:
    it = engine()
    it.read()
    it.driver.gets(it.scene.call(it.workers[0], "ping", by=it.driver))

    diagnosis = it.diagnose()

    assert diagnosis.verdict == "deadlock"
    assert not diagnosis.findings[0].assumed


def test_a_reader_behind_a_writer_that_runs_is_none() -> None:
    it = engine()
    it.read()
    it.driver.computes()

    assert it.diagnose().verdict == "running"


def test_readers_of_each_other_are_a_deadlock() -> None:
    it = engine()
    it.read()
    answers = "psm_2"
    has_end(it.workers[0], None, answers)
    has_end(it.driver, 0, answers)
    waits(it.driver, 0, it.workers[0], name=answers, unread=(0, 0))

    assert it.diagnose().verdict == "deadlock"


def test_a_message_that_only_has_to_be_read_is_none() -> None:
    it = engine()
    it.read(is_ready=True)
    it.driver.gets(it.scene.call(it.workers[0], "ping", by=it.driver))

    assert it.diagnose().verdict == "running"


def test_readers_of_an_idle_engine_are_no_alarm() -> None:
    it = engine()
    idle = it.scene.actor("Engine")
    has_end(idle, None)
    it.driver.known.clear()
    for rank, worker in enumerate(it.workers):
        waits(worker, rank, idle, *it.workers, unread=(0, 0))
    it.driver.gets(*(call for worker in it.workers for call in worker.running))

    assert it.diagnose().verdict not in ("deadlock", "hang")


def test_a_reader_whose_writer_has_ended_never_gets_a_message() -> None:
    it = engine()
    it.driver.known.clear()
    for rank, worker in enumerate(it.workers):
        waits(worker, rank, *it.workers, unread=(0, 0), is_unlinked=True)
    it.driver.gets(*(call for worker in it.workers for call in worker.running))

    diagnosis = it.diagnose()

    assert (diagnosis.verdict, [one.kind for one in diagnosis.findings]) == ("hang", ["orphaned"])
    assert "the writer of queue psm_1 is gone" in diagnosis.findings[0].summary


@pytest.mark.parametrize("strangers", [(), (4242,)])
def test_a_writer_that_may_exist_is_no_alarm(strangers: tuple[int, ...]) -> None:
    it = engine()
    it.driver.known.clear()
    for rank, worker in enumerate(it.workers):
        waits(worker, rank, *it.workers, unread=(0, 0), is_unlinked=bool(strangers), strangers=strangers)
    it.driver.gets(*(call for worker in it.workers for call in worker.running))

    assert it.diagnose().verdict not in ("deadlock", "hang")


def test_a_process_of_unknown_end_may_be_the_writer() -> None:
    it = engine()
    it.driver.known.clear()
    it.read()

    assert groups_of(it.scene.wait_of(it.workers[0])) == [(1, [it.driver.key])]


# Writes


def late(it: Engine, *others: SceneProcess) -> None:
    """The driver waits for room; rank 1 has read nothing."""
    waits(it.driver, None, *others, unread=(0, 4), late=(1,))


def test_a_writer_waits_for_the_readers_that_are_late() -> None:
    it = engine()
    it.read()
    late(it, *it.workers)
    it.workers[1].computes()

    wait = it.scene.wait_of(it.driver)

    assert groups_of(wait) == [(1, [it.workers[1].key])]
    assert queue_in_words(wait) == " (queue psm_1: rank 0 has read all, rank 1 has 4 unread)"
    diagnosis = it.diagnose()
    assert diagnosis.verdict == "running"
    assert diagnosis.findings[0].summary.endswith("(queue psm_1: rank 0 has read all, rank 1 has 4 unread)")


def test_a_late_reader_that_waits_for_the_writer_is_a_deadlock() -> None:
    it = engine()
    late(it, *it.workers)
    waits(it.workers[0], 0, *it.all, unread=(0, 4))
    it.workers[1].gets(it.scene.call(it.workers[0], "ping", by=it.workers[1]))

    assert it.diagnose().verdict == "deadlock"


def test_a_late_reader_whose_actor_is_dead_never_reads() -> None:
    it = engine()
    it.scene.dies(it.workers[1])
    waits(it.workers[0], 0, it.driver, unread=(0, 4))
    late(it, it.workers[0])

    diagnosis = it.diagnose()

    assert diagnosis.verdict == "hang"
    assert any("rank 1 of queue psm_1 is gone" in one.summary for one in diagnosis.findings)


def test_a_late_reader_that_may_come_is_no_alarm() -> None:
    it = engine()
    it.scene.dies(it.workers[1])
    assert it.workers[1].actor is not None
    it.scene.becomes(it.scene.actors[-1], state="RESTARTING")
    waits(it.workers[0], 0, it.driver, unread=(0, 4))
    late(it, it.workers[0])

    assert it.diagnose().verdict not in ("deadlock", "hang")


def test_a_late_reader_that_no_process_has_yet_is_no_alarm() -> None:
    it = engine()
    waits(it.workers[0], 0, it.driver, unread=(0, 4))
    late(it, it.workers[0])

    assert it.diagnose().verdict not in ("deadlock", "hang")
