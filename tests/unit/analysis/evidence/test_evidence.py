"""What is known beside each sample; the samples themselves are never changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dstack.analysis.evidence.evidence import Evidence
from dstack.analysis.graph.call_waits import reach_of
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.snapshot import Snapshot
from dstack.observed.calls import Call
from dstack.observed.processes import Thread
from tests.unit.analysis.evidence.polling_scenes import poller
from tests.unit.scenes import RAY_WORKER, Scene, SceneProcess


def main_thread(index: SampleIndex, proc: SceneProcess) -> Thread:
    (thread,) = (one for one in index.threads(proc.worker_id) if one.os_thread_id == proc.threads[0].tid)
    return thread


def call_of(index: SampleIndex, proc: SceneProcess) -> Call | None:
    return index.call_of(proc.worker_id, main_thread(index, proc))


def in_samples(snapshot: Snapshot, proc: SceneProcess) -> list[Call | None]:
    return [
        thread.call
        for sample in snapshot.samples
        for worker in sample.workers
        if worker.worker_id == proc.worker_id and worker.process
        for thread in worker.process.threads
        if thread.os_thread_id == proc.threads[0].tid
    ]


def test_without_a_second_sample_the_first_one_is_all() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("work", by=driver))
    snapshot = scene.snapshot()
    alone = SampleIndex(snapshot, snapshot.samples[0])

    evidence = Evidence(snapshot, alone)

    assert (evidence.has_second_sample, evidence.watched_s, evidence.polls) == (False, None, {})
    assert evidence.first is alone


def test_the_waits_were_watched_from_the_end_of_the_first_sample_to_the_beginning_of_the_second() -> None:
    scene = Scene()
    scene.driver()
    snapshot = scene.sample().sample().snapshot()
    first, second = snapshot.samples

    assert Evidence(snapshot).watched_s == pytest.approx(second.began_s - first.ended_s)


def test_a_loop_that_polls_is_at_its_poll_in_all_indexes() -> None:
    it = poller()
    it.actor.computes()
    it.scene.sample()
    it.polls()
    it.scene.read([it.actor]).read([it.actor]).read([it.actor])
    it.actor.computes()
    snapshot = it.scene.sample().snapshot()
    evidence = Evidence(snapshot)

    for index in (evidence.first, evidence.second, evidence.latest):
        thread, worker_id = main_thread(index, it.actor), it.actor.worker_id
        call = index.call_of(worker_id, thread)
        assert call is not None
        assert call.refs == (it.again.ref,)
        assert list(index.calls_in(worker_id)) == [call]
        assert (index.is_still(worker_id, thread), index.is_on_cpu(worker_id, thread)) == (True, False)
        assert RAY_WORKER in {frame.file for frame in index.frames_of(worker_id, thread)}
    assert in_samples(snapshot, it.actor) == [None, None]


def test_a_thread_that_only_polls_did_not_run_between_its_polls() -> None:
    it = poller()
    it.actor.computes()
    it.scene.sample()
    it.polls()
    it.scene.read([it.actor]).read([it.actor]).read([it.actor])
    snapshot = it.scene.sample().snapshot()
    alone = SampleIndex(snapshot, snapshot.samples[0])

    assert (it.actor.worker_id, it.actor.threads[0].tid) in alone.threads_that_ran
    assert (it.actor.worker_id, it.actor.threads[0].tid) not in Evidence(snapshot).first.threads_that_ran


def test_what_can_reach_the_object_of_a_wait_may_be_found_later() -> None:
    scene = Scene()
    driver = scene.driver()
    consumer = driver.thread("consumer", "user")
    driver.is_in("queue.Queue.get", "0x10")
    scene.sample()

    driver.is_reached_by(consumer)
    snapshot = scene.sample().snapshot()

    call, (before, _) = call_of(Evidence(snapshot).first, driver), in_samples(snapshot, driver)
    assert call is not None
    assert before is not None
    assert (reach_of(call).reached_by, reach_of(before).reached_by) == ((consumer.tid,), ())


def test_a_search_in_another_wait_says_nothing_of_the_first_wait() -> None:
    scene = Scene()
    driver = scene.driver()
    consumer = driver.thread("consumer", "user")
    driver.is_in("queue.Queue.get", "0x10")
    scene.sample()

    driver.is_in("queue.Queue.get", "0x20").is_reached_by(consumer)
    snapshot = scene.sample().snapshot()

    call = call_of(Evidence(snapshot).first, driver)
    assert call is not None
    assert (reach_of(call).object_id, reach_of(call).reached_by) == ("0x10", ())


def is_unread(proc: SceneProcess) -> None:
    proc.threads[0].waits_unreadably("its thread was woken during every reading")


def is_unstable(proc: SceneProcess) -> None:
    proc.threads[0].is_unstable().call = None


@pytest.mark.parametrize("happens", [is_unread, is_unstable])
def test_a_call_that_could_not_be_read_again_is_that_of_the_first_sample(
    happens: Callable[[SceneProcess], None],
) -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("work", by=driver))
    scene.sample()

    leaf, *outer = driver.threads[0].frames()
    happens(driver)
    driver.threads[0].leaf, driver.threads[0].outer = leaf, tuple(outer)
    snapshot = scene.sample().snapshot()
    evidence = Evidence(snapshot)

    first, second = in_samples(snapshot, driver)
    assert (call_of(evidence.second, driver), call_of(evidence.latest, driver)) == (second, first)
    assert first is not None
    assert first != second


def test_a_call_at_another_place_is_not_that_of_the_first_sample() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("work", by=driver))
    scene.sample()

    driver.threads[0].is_unstable().call = None
    driver.threads[0].line = 77
    evidence = Evidence(scene.sample().snapshot())

    assert call_of(evidence.latest, driver) is None


def test_a_process_that_was_read_less_completely_again_is_that_of_the_first_sample() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("work", by=driver))
    scene.sample()

    driver.has_no_stacks = True
    evidence = Evidence(scene.sample().snapshot())

    assert evidence.second.threads(driver.worker_id) == ()
    assert evidence.latest.threads(driver.worker_id) == evidence.first.threads(driver.worker_id) != ()


def test_the_state_of_a_worker_that_did_not_answer_again_is_that_of_the_first_sample() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor()
    call = scene.call(actor, "work", by=driver)
    actor.runs(call)
    driver.gets(call)
    scene.sample()

    driver.is_unreachable = actor.is_unreachable = True
    evidence = Evidence(scene.sample().snapshot())

    assert (evidence.second.worker_of_task, evidence.second.tasks) == ({}, {})
    assert evidence.latest.worker_of_task == {call.task.task_id: actor.worker_id}
    assert evidence.latest.tasks == {call.task.task_id: call.task}


def test_nothing_is_known_of_a_worker_that_has_ended() -> None:
    scene = Scene()
    driver, other = scene.driver(), scene.driver()
    call = scene.task("work", by=other)
    other.gets(call)
    scene.sample()

    scene.procs.remove(other)
    evidence = Evidence(scene.sample().snapshot())

    assert set(evidence.latest.worker_samples) == set(evidence.latest.processes) == {driver.worker_id}
    assert call.task.task_id not in evidence.latest.tasks
