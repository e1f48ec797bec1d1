"""Threads and coroutines that may end each other's waits are no deadlock where all of them wait as idle services do."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from dstack.analysis.graph.users import is_idle_library
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Snapshot
from dstack.observed.calls import Call, End, Holder, KernelObjects, ProcessObject
from dstack.observed.processes import Frame, Thread
from tests.unit.scenes import Scene, SceneProcess, SceneThread

IDLE_LIBRARY = Frame(function="run", file="/usr/lib/python3/site-packages/ray/data/executor.py", line=4, origin="ray")


def confirmed(scene: Scene) -> Diagnosis:
    scene.sample()
    scene.second_sample()
    return scene.diagnose()


def service(scene: Scene) -> tuple[SceneProcess, SceneThread, SceneThread]:
    """A driver whose main thread waits to be stopped, while a consumer has no work."""
    driver = scene.driver()
    main, consumer = driver.threads[0], driver.thread("consumer", "user")
    main.is_in("threading.Event.wait", "0x10").is_reached_by(consumer)
    consumer.is_in("queue.Queue.get", "0x20").is_reached_by(main)
    return driver, main, consumer


def test_an_idle_consumer_and_a_main_thread_that_waits_for_a_stop_are_no_deadlock() -> None:
    scene = Scene()
    service(scene)

    assert confirmed(scene).verdict != "deadlock"


def test_two_coroutines_of_an_idle_server_are_no_deadlock() -> None:
    scene = Scene()
    driver, server = scene.driver(), scene.async_actor("Server")
    serve = scene.call(server, "serve", by=driver)
    coroutine = server.begins(serve)
    worker = server.coroutine()
    worker.is_in("asyncio.Queue.get", "0x20").is_reached_by(coroutine)
    coroutine.awaits(worker)
    driver.gets(serve)

    assert confirmed(scene).verdict != "deadlock"


def test_a_consumer_that_is_stuck_in_ray_does_not_wake_the_main_thread() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Scheduler")
    run = scene.call(actor, "run", by=driver)
    again = scene.call(actor, "again", by=actor)
    actor.runs(run)
    consumer = actor.thread("consumer", "user").gets(again)
    actor.slots[0].is_in("threading.Event.wait", "0x10").is_reached_by(consumer)
    driver.gets(run)

    assert confirmed(scene).verdict == "deadlock"


def test_a_call_that_cannot_begin_does_not_wake_the_main_thread() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Buffer")
    take, put = scene.call(actor, "take", by=driver), scene.call(actor, "put", by=driver)
    actor.runs(take).is_in("queue.Queue.get", "0x20").is_reached_by(actor=True)
    driver.gets(put)

    assert confirmed(scene).verdict == "deadlock"


def blocking_its_loop(what: str, *, serves: bool = False) -> Scene:
    """An async method that blocks its event loop in a wait that a coroutine of this loop would end."""
    scene = Scene()
    driver = scene.driver()
    office = scene.async_actor("Office", owner_id=driver.worker_id).works_for()
    report = scene.call(office, "report", by=driver)
    loop = office.threads[-1]
    office.running.append(report)
    loop.task_id = report.task.task_id
    loop.is_in(what, "0x10").is_reached_by(office.coroutine(report, loop=loop))
    driver.gets(report)
    if serves:
        server = office.thread("server", "ray")
        server.leaf, server.is_asleep = IDLE_LIBRARY, True
    return scene


def test_a_coroutine_does_not_end_a_wait_that_blocks_its_event_loop() -> None:
    diagnosis = confirmed(blocking_its_loop("threading.Event.wait"))

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, bool(finding.assumed)) == ("deadlock", True)
    assert "Await instead of blocking in threading.Event.wait" in str(finding.advice)


def test_an_idle_library_server_may_end_the_wait() -> None:
    scene = blocking_its_loop("threading.Event.wait", serves=True)
    scene.sample()
    for _ in range(3):
        scene.read(scene.procs)

    assert scene.sample().diagnose().verdict not in ("deadlock", "hang")


# Library code is assumed to stay idle, unless it waits for a socket or a timer


THREADING = Frame(function="Condition.wait", file="/usr/lib/python3.11/threading.py", line=7, origin="stdlib")
SELECTORS = Frame(function="select", file="/usr/lib/python3.11/selectors.py", line=7, origin="stdlib")
LIBRARY = Frame(function="run", file="/usr/lib/python3/site-packages/tqdm/_monitor.py", line=7, origin="library")
RAYS = Frame(function="run", file="/usr/lib/python3/site-packages/ray/serve/controller.py", line=7, origin="ray")
USERS = Frame(function="run", file="/srv/app.py", line=7, origin="user")
GET = Call(site="queue.Queue.get", frame=0, need=ProcessObject())
WAIT = Call(site="threading.Event.wait", frame=0, need=ProcessObject(), timeout_s=10.0)


def in_kernel(*pids: int, name: str = "", timeout_s: float | None = None) -> Call:
    """A wait on a socket whose other end these processes have; of no job if they have a name."""
    end = End(what="Unix socket", holders=tuple(Holder(pid=pid, name=name) for pid in pids))
    return Call(site="kernel.call", frame=0, need=KernelObjects(system_call="read", ends=(end,)), timeout_s=timeout_s)


OWN = 1000
"""The pid of the driver of a scene."""
POLLER = in_kernel(OWN)
"""grpc.aio waits for its own events on a pair of sockets."""


def stays_idle(*frames: Frame, call: Call | None = None, name: str = "Thread-1", on_cpu: bool = False) -> bool:
    """Whether a thread with this stack, leaf first, is assumed to stay idle."""
    scene = Scene()
    worker = scene.driver().worker_id
    snapshot = scene.sample().second_sample().snapshot()
    thread = Thread(os_thread_id=7, name=name, stack=0, role="ray", call=call, on_cpu=on_cpu, still=not on_cpu)
    index = SampleIndex(_with(snapshot, frames, thread), snapshot.samples[0])
    return is_idle_library(index, worker, thread)


def _with(snapshot: Snapshot, frames: tuple[Frame, ...], thread: Thread) -> Snapshot:
    """The snapshot with these frames as its only stack, and this thread as the only one of each process."""

    samples = tuple(
        replace(
            sample,
            workers=tuple(
                replace(
                    worker,
                    process=worker.process and dataclasses.replace(worker.process, threads=(thread,), coroutines=()),
                )
                for worker in sample.workers
            ),
        )
        for sample in snapshot.samples
    )
    return replace(snapshot, frames=frames, stacks=(tuple(range(len(frames))),), samples=samples)


@pytest.mark.parametrize(
    ("frames", "call", "name"),
    [
        ((THREADING, LIBRARY), WAIT, "Thread-1"),
        ((THREADING, LIBRARY), GET, "Thread-1"),
        ((RAYS, THREADING), None, "Thread-1"),
        ((THREADING,), GET, "Thread-1"),
        ((THREADING,), POLLER, "Thread-2 (_poll_wrapper)"),
        ((LIBRARY,), dataclasses.replace(in_kernel(OWN, timeout_s=30.0), site="multiprocessing.Queue.get"), "Thread-2"),
    ],
)
def test_a_library_wait_on_its_own_process_stays_idle(frames: tuple[Frame, ...], call: Call | None, name: str) -> None:
    assert stays_idle(*frames, call=call, name=name)
    assert not stays_idle(*frames, call=call, name=name, on_cpu=True)


@pytest.mark.parametrize(
    ("frames", "call"),
    [
        ((SELECTORS, LIBRARY), None),
        ((SELECTORS,), None),
        ((LIBRARY,), None),
        ((THREADING,), WAIT),
        ((THREADING, USERS), GET),
        ((LIBRARY,), in_kernel(OWN, timeout_s=1.0)),
        ((LIBRARY,), in_kernel(OWN, 77)),
        ((LIBRARY,), in_kernel(77, name="redis-server")),
        ((LIBRARY,), in_kernel()),
        ((), None),
    ],
)
def test_a_library_wait_on_a_socket_or_timer_may_proceed(frames: tuple[Frame, ...], call: Call | None) -> None:
    assert not stays_idle(*frames, call=call)
