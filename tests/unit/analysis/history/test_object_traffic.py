"""The objects that processes get from each other, and the calls that they execute, from one sample to the next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from unittest.mock import patch

from msgspec import structs

from dstack.analysis.history import object_traffic
from dstack.analysis.history.object_traffic import ObjectTraffic
from dstack.model.profile import Endpoint, ExecutedCalls, Traffic
from dstack.model.snapshot import Snapshot
from dstack.observed.node import CoreWorkerReply, Ref
from tests.unit.scenes.calls import JOB, Call
from tests.unit.scenes.processes import SceneProcess
from tests.unit.scenes.scene import Scene

MIB = 1 << 20
DRIVER = Endpoint("driver", "train.py", job_id=JOB)
LOAD = Endpoint("actor", "Loader", "load", JOB)
STEP = Endpoint("actor", "Trainer", "step", JOB)


class Job:
    """A driver that lets a loader make objects, and a trainer take them; its traffic is counted from the begin."""

    def __init__(self, job_id: str | None = None) -> None:
        self.scene = Scene()
        self.driver = self.scene.driver()
        self.loader, self.trainer = self.scene.actor("Loader"), self.scene.actor("Trainer")
        self.loader.executed = 0
        self.load = self.scene.call(self.loader, "load", by=self.driver)
        self.step = self.scene.call(self.trainer, "step", by=self.driver)
        self.traffic = ObjectTraffic(job_id)
        self.note(self.reply(self.driver, tasks=[self.load, self.step]))

    def note(self, *replies: CoreWorkerReply) -> None:
        self.traffic.note(self.snapshot(), replies)

    def snapshot(self) -> Snapshot:
        self.scene.sample()
        snapshot = self.scene.snapshot()
        return structs.replace(snapshot, samples=snapshot.samples[-1:])

    def reply(
        self,
        proc: SceneProcess,
        *refs: Ref,
        mapped: Iterable[str] = (),
        running: Iterable[Call] = (),
        tasks: Iterable[Call] = (),
        executed: int = 0,
    ) -> CoreWorkerReply:
        return CoreWorkerReply(
            worker_id=proc.worker_id,
            running_task_ids=tuple(one.task.task_id for one in running),
            tasks=tuple(one.task for one in tasks),
            refs=tuple(replace(ref, holder_id=proc.worker_id) for ref in refs),
            mapped=dict.fromkeys(mapped, MIB),
            executed_tasks=executed,
        )

    def counted(self) -> list[Traffic]:
        return self.traffic.taken()[0]


def result_of(call: Call, number: int = 1) -> str:
    return f"{call.task.task_id}{number:02x}000000"


def put_by(task_id: str, number: int = 1) -> str:
    return f"00{task_id[2:]}{number:02x}e1f505"


def ref(ref_id: str, size: int, *, local: int = 1) -> Ref:
    return Ref(ref=ref_id, holder_id="", size_bytes=size, local_uses=local)


def test_a_value_in_a_process_that_runs_a_call_is_counted_once() -> None:
    job = Job()
    for _ in range(2):
        job.note(job.reply(job.trainer, mapped=[result_of(job.load)], running=[job.step]))

    assert job.counted() == [Traffic(LOAD, STEP, 1, MIB)]
    assert job.counted() == []


def test_an_object_counts_for_each_process_that_has_its_value() -> None:
    job = Job()
    job.note(
        job.reply(job.trainer, mapped=[result_of(job.load)], running=[job.step]),
        job.reply(job.driver, mapped=[result_of(job.load)]),
    )

    assert job.counted() == [Traffic(LOAD, STEP, 1, MIB), Traffic(LOAD, DRIVER, 1, MIB)]


def test_an_owner_that_only_passes_a_ref_on_has_not_got_the_object() -> None:
    job = Job()
    job.note(job.reply(job.driver, ref(result_of(job.load), MIB)))

    assert job.counted() == []


def test_an_owner_gets_small_results_and_those_that_it_has_waited_for() -> None:
    job = Job()
    job.driver.gets(job.load)
    job.note()
    job.note(job.reply(job.driver, ref(result_of(job.load), MIB), ref(result_of(job.step), 40)))

    assert set(job.counted()) == {Traffic(LOAD, DRIVER, 1, MIB), Traffic(STEP, DRIVER, 1, 40)}


def test_of_a_process_with_many_refs_only_the_values_in_shared_memory_count() -> None:
    job = Job()
    refs = [ref(result_of(job.load, number), 40) for number in (1, 2, 3)]
    with patch.object(object_traffic, "MAX_REFS", 2):
        job.note(job.reply(job.driver, *refs, mapped=[result_of(job.step)]))

    assert job.counted() == [Traffic(STEP, DRIVER, 1, MIB)]


def test_what_a_driver_puts_is_its_own_and_may_come_to_others() -> None:
    job = Job()
    put = put_by("f" * 40 + JOB)
    job.note(
        job.reply(job.driver, ref(put, 40), mapped=[put]),
        job.reply(job.trainer, mapped=[put], running=[job.step]),
    )

    assert job.counted() == [Traffic(DRIVER, STEP, 1, MIB)]


def test_what_an_actor_makes_is_its_own() -> None:
    job = Job()
    job.note(job.reply(job.loader, mapped=[result_of(job.load), put_by(job.load.task.task_id)]))

    assert job.counted() == []


def test_methods_are_left_out_where_several_calls_run_or_a_call_was_not_seen() -> None:
    job = Job()
    unseen = job.scene.call(job.loader, "load", by=job.driver)
    job.note(job.reply(job.trainer, mapped=[result_of(unseen)], running=[job.step, job.load]))

    assert job.counted() == [
        Traffic(Endpoint("actor", "Loader", job_id=JOB), Endpoint("actor", "Trainer", job_id=JOB), 1, MIB)
    ]


def test_an_actor_that_began_several_calls_may_keep_the_value_of_any() -> None:
    job = Job()
    for number, executed in ((1, 1), (2, 3)):
        mapped = [result_of(job.load, number)]
        job.note(job.reply(job.trainer, mapped=mapped, running=[job.step], executed=executed))

    assert job.counted() == [
        Traffic(LOAD, STEP, 1, MIB),
        Traffic(LOAD, Endpoint("actor", "Trainer", job_id=JOB), 1, MIB),
    ]


def test_objects_of_the_first_sample_are_not_new() -> None:
    job = Job()
    traffic = ObjectTraffic()
    reply = job.reply(job.driver, mapped=[result_of(job.load)], tasks=[job.load])
    traffic.note(job.snapshot(), [reply])
    traffic.note(job.snapshot(), [replace(reply, mapped={**reply.mapped, result_of(job.load, 2): 5})])

    assert traffic.taken()[0] == [Traffic(LOAD, DRIVER, 1, 5)]


def test_executed_calls_are_counted_from_the_first_sample_of_a_worker() -> None:
    job = Job()
    job.loader.executed = 3
    job.note()
    job.loader.executed = 5
    job.note()

    assert job.traffic.taken()[1] == [ExecutedCalls(Endpoint("actor", "Loader", job_id=JOB), 5)]


def test_another_job_is_not_counted() -> None:
    job = Job("99000000")
    job.loader.executed = 3
    job.note(job.reply(job.driver, mapped=[result_of(job.load)]))

    assert job.traffic.taken() == ([], [])


def test_objects_that_no_process_knows_are_forgotten_and_others_are_not_counted_again() -> None:
    with patch.object(object_traffic, "FORGOTTEN_FROM", 4):
        job = Job()
        stays = result_of(job.load, 1)
        for number in range(2, 42):
            ids = [stays, result_of(job.load, number)]
            job.note(job.reply(job.driver, *(ref(one, MIB) for one in ids), mapped=ids))

    assert job.counted() == [Traffic(LOAD, DRIVER, 41, 41 * MIB)]
    assert stays in job.traffic._counted[job.driver.worker_id]
    assert len(job.traffic._counted[job.driver.worker_id]) < 10


def test_with_too_many_known_objects_no_more_are_counted() -> None:
    job = Job()
    ids = [result_of(job.load, number) for number in range(1, 5)]
    with patch.object(object_traffic, "MAX_KNOWN", 3):
        job.note(job.reply(job.driver, *(ref(one, MIB) for one in ids), mapped=ids))

    assert job.counted() == [Traffic(LOAD, DRIVER, 3, 3 * MIB)]
