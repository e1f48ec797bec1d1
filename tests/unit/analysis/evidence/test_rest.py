"""Rest: a job in which nothing happened between the samples, and what shows that something may."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.model.snapshot import Snapshot
from dstack.observed.calls import Awaitables, Call, Children, ProcessObject
from dstack.observed.processes import Coroutine, Frame, Process, Thread
from tests.unit.scenes import Scene, SceneProcess

WAIT = Call(site="threading.Event.wait", frame=0, need=ProcessObject())
POLL = dataclasses.replace(WAIT, timeout_s=0.1)


def parked() -> tuple[Scene, SceneProcess, SceneProcess]:
    """A driver that gets a call of an actor, which waits for an event that nothing sets."""
    scene = Scene()
    driver, gate = scene.driver(), scene.actor("Gate")
    call = scene.call(gate, "enter", by=driver)
    gate.runs(call).is_in("threading.Event.wait", "0x1")
    driver.gets(call)
    return scene, driver, gate


def with_child(snapshot: Snapshot, parent: SceneProcess, *threads: Thread, cpu_s: float = 0.0) -> Snapshot:
    """The snapshot with a child process; each thread is that of one sample."""
    samples = []
    for at, (sample, thread) in enumerate(zip(snapshot.samples, threads, strict=True)):
        child = Process(pid=77, started_at=1.0, parent_pid=parent.worker.pid, threads=(thread,), cpu_s=cpu_s * at)
        workers = [
            replace(worker, process=dataclasses.replace(worker.process, children=(child,)))
            if worker.worker_id == parent.worker_id and worker.process
            else worker
            for worker in sample.workers
        ]
        samples.append(replace(sample, workers=tuple(workers)))
    return replace(snapshot, samples=tuple(samples))


def child(slices: int, **known: Any) -> Thread:
    return Thread(os_thread_id=77, name="child", stack=0, role="user", slices=slices, still=True, **known)


def test_a_job_without_movement_is_stalled() -> None:
    scene, _, _ = parked()
    assert scene.sample().second_sample().diagnose().verdict == "stalled"


@pytest.mark.parametrize(
    ("before", "after", "cpu_s", "verdict"),
    [
        (child(1, call=WAIT), child(1, call=WAIT), 0.0, "stalled"),
        (child(1, call=WAIT), child(2, call=WAIT), 0.0, "running"),
        (child(1, sleeps=True), child(2, sleeps=True), 0.0, "stalled"),
        (child(1, sleeps=True), child(1, sleeps=True), 0.0, "running"),
        (child(1, call=POLL), child(2, call=POLL), 0.0, "stalled"),
        (child(1, call=POLL), child(1, call=POLL), 0.0, "running"),
        (child(1, call=WAIT), child(1, call=WAIT), 2.0, "running"),
        (child(1), child(1), 0.0, "running"),
        (child(1, call=WAIT), child(1, call=WAIT, on_cpu=True), 0.0, "running"),
    ],
    ids=["waits", "was woken", "sleeps in a loop", "sleeps", "polls", "may time out", "computes", "unknown", "runs"],
)
def test_a_child_process_counts(before: Thread, after: Thread, cpu_s: float, verdict: str) -> None:
    scene, _, gate = parked()
    snapshot = scene.sample().second_sample().snapshot()

    assert diagnose(with_child(snapshot, gate, before, after, cpu_s=cpu_s)).verdict == verdict


@pytest.mark.parametrize(("again", "verdict"), [(1, "running"), (2, "stalled")], ids=["timer", "loop"])
def test_a_thread_that_sleeps_is_in_a_loop_or_on_a_timer(again: int, verdict: str) -> None:
    scene, driver, _ = parked()
    thread = driver.thread("keeper", "user")
    thread.sleeps, thread.slices = True, 1
    scene.sample()
    thread.slices = again

    assert scene.second_sample().diagnose().verdict == verdict


def test_a_process_that_uses_its_cpu_is_not_at_rest() -> None:
    scene, _, gate = parked()
    snapshot = scene.sample().second_sample().snapshot()
    busy = [
        replace(worker, process=dataclasses.replace(worker.process, cpu_s=5.0))
        if worker.worker_id == gate.worker_id and worker.process
        else worker
        for worker in snapshot.samples[1].workers
    ]
    last = replace(snapshot.samples[1], workers=tuple(busy))

    assert diagnose(replace(snapshot, samples=(snapshot.samples[0], last))).verdict == "running"


@pytest.mark.parametrize(
    ("calls", "verdict"), [(False, "stalled"), (True, "running")], ids=["only wakes", "calls an actor"]
)
def test_a_loop_that_calls_an_actor_is_not_at_rest(calls: bool, verdict: str) -> None:
    scene, driver, _ = parked()
    producer, buffer = scene.actor("Producer"), scene.actor("Buffer").idles()
    produce, add = scene.call(producer, "produce", by=driver), scene.call(buffer, "add", by=producer)
    producer.submitted.remove(add)
    thread = producer.runs(produce).threads[0]
    thread.is_in("threading.Event.wait", "0x2", timeout_s=1.0)
    if calls:
        scene.repeats(add, by=produce)
    thread.slices = 1
    scene.sample()
    thread.slices = 2

    assert scene.second_sample().diagnose().verdict == verdict


@pytest.mark.parametrize(("is_awaited", "verdict"), [(False, "stalled"), (True, "running")])
def test_an_unread_call_of_a_library_counts_only_if_the_application_waits_for_it(
    is_awaited: bool, verdict: str
) -> None:
    scene, driver, _ = parked()
    serve = scene.actor("ServeController", name="SERVE_CONTROLLER_ACTOR")
    serve.threads[0].role = "ray"
    serve.thread("AsyncIO Thread: default", "loop")
    listen = scene.call(serve, "listen_for_change", by=driver)
    serve.runs(listen)
    if is_awaited:
        scene.driver().gets(listen)

    assert scene.sample().second_sample().diagnose().verdict == verdict


def with_coroutines(snapshot: Snapshot, *coroutines: Coroutine) -> Snapshot:
    """The snapshot with these coroutines in each child process."""
    samples = []
    for sample in snapshot.samples:
        workers = []
        for worker in sample.workers:
            process = worker.process
            if process and process.children:
                (child,) = process.children
                child = dataclasses.replace(child, coroutines=coroutines, coroutines_read=True)
                process = dataclasses.replace(process, children=(child,))
            workers.append(replace(worker, process=process))
        samples.append(replace(sample, workers=tuple(workers)))
    return replace(snapshot, samples=tuple(samples))


def loops(slices: int) -> Thread:
    need = Awaitables(coroutines=("0x9/77",))
    return child(slices, call=Call(site="asyncio.run", frame=0, need=need))


@pytest.mark.parametrize(
    ("of_child", "verdict"),
    [
        (Coroutine(coroutine_id="0x9/77", name="main", stack=0, still=True, call=WAIT), "stalled"),
        (Coroutine(coroutine_id="0x9/77", name="main", stack=0, still=True), "running"),
        (None, "running"),
    ],
    ids=["waits", "sleeps", "unread"],
)
def test_an_event_loop_of_a_child_does_what_its_coroutines_do(of_child: Coroutine | None, verdict: str) -> None:
    scene, _, gate = parked()
    snapshot = with_child(scene.sample().second_sample().snapshot(), gate, loops(1), loops(2))
    if of_child:
        snapshot = with_coroutines(snapshot, of_child)

    assert diagnose(snapshot).verdict == verdict


@pytest.mark.parametrize(("again", "verdict"), [(2, "stalled"), (1, "running")], ids=["ticks", "sleeps for long"])
def test_a_coroutine_of_a_library_rests_if_its_loop_has_run(again: int, verdict: str) -> None:
    """As the server that a child process runs, in a method that wakes ten times a second."""
    scene, _, gate = parked()
    gate.threads[0].call = Call(site="multiprocessing.Process.join", frame=0, need=Children(pids=(77,)))
    snapshot = with_child(scene.sample().second_sample().snapshot(), gate, loops(1), loops(again))
    tick = Frame(
        function="main_loop", file="/usr/lib/python3/site-packages/uvicorn/server.py", line=248, origin="library"
    )
    frames, stacks = (*snapshot.frames, tick), (*snapshot.stacks, (len(snapshot.frames),))
    main = Coroutine(coroutine_id="0x9/77", name="main", stack=len(snapshot.stacks), os_thread_id=77, still=True)
    snapshot = with_coroutines(replace(snapshot, frames=frames, stacks=stacks), main)

    assert diagnose(snapshot).verdict == verdict
