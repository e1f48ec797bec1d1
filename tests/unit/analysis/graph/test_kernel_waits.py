"""Waits in the kernel for processes at the other ends: of their pipes, sockets, locks and children."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from dstack.analysis.diagnose import diagnose
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Snapshot, TcpEnd
from dstack.observed.calls import Call, End, EndKind, Holder, KernelObjects, ProcessObject
from dstack.observed.processes import EndedChild
from dstack.report.text import report_text
from tests.unit.scenes import Scene, SceneProcess


def sleeps_in(process: SceneProcess, *ends: End, by_thread: bool = False, timeout_s: float | None = None) -> None:
    """The main thread of a process sleeps in a system call until one of these ends allows it to go on."""
    need = KernelObjects(system_call="poll", ends=ends, is_by_thread=by_thread)
    process.threads[0].call = Call(site="kernel.call", name="recv of lib", frame=0, need=need, timeout_s=timeout_s)


def to(*processes: SceneProcess | int, what: EndKind = "pipe", **known: Any) -> End:
    """An end that these processes hold; a number is the pid of a process of no job."""
    holders = tuple(
        Holder(pid=one, name="redis-server") if isinstance(one, int) else Holder(pid=one.worker.pid)
        for one in processes
    )
    return replace(End(what=what, identity=f"{what} 1", state="connected", holders=holders), **known)


def pair() -> tuple[Scene, SceneProcess, SceneProcess, SceneProcess]:
    """A driver that gets a call of one actor, and another actor that runs a call, too."""
    scene = Scene()
    driver, left, right = scene.driver(), scene.actor("Left"), scene.actor("Right")
    first, second = scene.call(left, "ask", by=driver), scene.call(right, "answer", by=driver)
    left.runs(first)
    right.runs(second)
    driver.gets(first, second)
    return scene, driver, left, right


def twice(scene: Scene) -> Snapshot:
    return scene.sample().second_sample().snapshot()


def verdict(scene: Scene) -> str:
    return diagnose(twice(scene)).verdict


def text_of(snapshot: Snapshot) -> str:
    return " ".join(report_text(AnalysedSnapshot.of(snapshot)).split())


@pytest.mark.parametrize(("is_write", "expected"), [(True, "deadlock"), (False, "stalled")])
def test_two_processes_that_wait_for_each_other(is_write: bool, expected: str) -> None:
    """Each may read until a request comes; a writer to a full pipe is no idle service."""
    scene, _, left, right = pair()
    sleeps_in(left, to(right, is_write=is_write))
    sleeps_in(right, to(left, is_write=is_write))

    assert verdict(scene) == expected


def test_a_pipe_and_a_ref_make_a_cycle() -> None:
    scene, _, left, right = pair()
    sleeps_in(left, to(right, is_write=True))
    right.gets(scene.call(left, "other", by=right))

    diagnosis = diagnose(twice(scene))

    assert diagnosis.verdict == "deadlock"
    assert not diagnosis.findings[0].confirmed, "that nothing else has the pipe open is an assumption"
    assert "for room in a full pipe that only actor Right" in text_of(twice(scene))


def test_a_process_that_computes_can_act() -> None:
    scene, _, left, right = pair()
    sleeps_in(left, to(right, is_write=True))
    right.computes()

    assert verdict(scene) == "running"


def test_a_process_of_no_job_can_act() -> None:
    scene, _, left, right = pair()
    sleeps_in(left, to(right, 77, is_write=True))
    right.gets(scene.call(left, "other", by=right))

    assert verdict(scene) == "stalled"
    assert "redis-server (pid 77)" in text_of(twice(scene))


@pytest.mark.parametrize(("is_in_ray", "is_shown"), [(True, False), (False, True)])
def test_a_thread_of_a_library_alone_is_no_finding(is_in_ray: bool, is_shown: bool) -> None:
    scene = Scene()
    driver = scene.driver()
    thread = driver.thread("receiver", role="user")
    thread.is_in_ray = is_in_ray
    need = KernelObjects(system_call="read", ends=(to(77),))
    thread.call = Call(site="kernel.call", name="Popen2IO.read of execnet", frame=0, need=need)

    assert bool(diagnose(twice(scene)).findings) == is_shown


def test_a_process_of_no_job_that_runs_may_act() -> None:
    scene, _, left, right = pair()
    right.gets(scene.call(left, "other", by=right))
    for cpu_s in (1.0, 1.5):
        end = to(77)
        sleeps_in(left, replace(end, holders=(replace(end.holders[0], cpu_s=cpu_s),)))
        scene.sample() if cpu_s == 1.0 else scene.second_sample()

    assert scene.diagnose().verdict == "running"


def test_a_full_pipe_has_its_stopped_reader_in_the_headline() -> None:
    scene, driver, _, _ = pair()
    driver.threads[0].call = None
    pipe = replace(to(7, is_write=True), holders=(Holder(pid=7, name="tee", is_stopped=True),))
    sleeps_in(driver, pipe)

    assert "for room in a full pipe that only tee (pid 7, which is stopped) can read" in text_of(twice(scene))


def test_bytes_on_their_way_end_the_wait() -> None:
    scene, _, left, right = pair()
    sleeps_in(left, to(right, what="TCP", unread=7))
    right.gets(scene.call(left, "other", by=right))

    assert verdict(scene) == "running"


def test_a_wait_with_a_timeout_ends_by_itself() -> None:
    scene, _, left, right = pair()
    sleeps_in(left, to(right, is_write=True), timeout_s=60.0)
    right.gets(scene.call(left, "other", by=right))

    assert verdict(scene) == "running"


@pytest.mark.parametrize("what", ["terminal", "signal", "directory"])
def test_what_comes_from_outside_can_end_a_wait(what: EndKind) -> None:
    scene, _, left, right = pair()
    sleeps_in(left, to(right, is_write=True), End(what=what))
    right.gets(scene.call(left, "other", by=right))

    assert verdict(scene) in ("running", "stalled")


def test_native_threads_lead_to_the_other_process_but_prove_nothing() -> None:
    scene, _, left, right = pair()
    sleeps_in(left, End(what="eventfd"), to(right, what="TCP", through="IO/0"), by_thread=True)
    sleeps_in(right, End(what="eventfd"), to(left, what="TCP", through="IO/0"), by_thread=True)

    assert verdict(scene) == "stalled"
    text = text_of(twice(scene))
    assert "for actor Left" in text
    assert "for actor Right" in text
    assert "by the sockets of thread IO/0, with nothing unread or unsent" in text


@pytest.mark.parametrize(("unread", "expected"), [(0, "stalled"), (7, "running")])
def test_a_coroutine_may_be_ended_by_what_its_event_loop_watches(unread: int, expected: str) -> None:
    scene = Scene()
    driver, server, client = scene.driver(), scene.actor("Server"), scene.async_actor("Client")
    first, second = scene.call(client, "ask", by=driver), scene.call(server, "answer", by=driver)
    server.runs(second)
    reader = client.begins(first).is_in("asyncio.StreamReader.read", "0x9")
    driver.gets(first, second)
    assert reader.call is not None
    ends = (to(server, what="TCP", through="loop", unread=unread),)
    reader.call = replace(reader.call, need=ProcessObject(object_id="0x9", ends=ends))
    sleeps_in(server, End(what="TCP", state="listening", name="127.0.0.1:80"))

    assert verdict(scene) == expected
    if not unread:
        assert "its event loop is connected to actor Server" in text_of(twice(scene))


def test_a_pipe_of_the_own_process_alone_proves_nothing() -> None:
    scene, _, left, right = pair()
    sleeps_in(left, to(left))
    right.gets(scene.call(left, "other", by=right))

    assert verdict(scene) == "stalled"


def test_a_connection_to_another_node_is_followed() -> None:
    scene = Scene()
    driver, left = scene.driver(), scene.actor("Left")
    right = scene.actor("Right", node=scene.node())
    first, second = scene.call(left, "ask", by=driver), scene.call(right, "answer", by=driver)
    left.runs(first)
    right.runs(second)
    driver.gets(first, second)
    sleeps_in(
        left, End(what="TCP", identity="10.0.0.1:1 10.0.0.2:2", name="10.0.0.2:2", state="connected", is_write=True)
    )
    right.gets(scene.call(left, "other", by=right))
    snapshot = twice(scene)
    other = TcpEnd(node_id=right.worker.node_id, holders=(Holder(pid=right.worker.pid),))

    assert diagnose(snapshot).verdict == "stalled"
    found = changed(snapshot, tcp_ends={"10.0.0.2:2 10.0.0.1:1": other})
    assert diagnose(found).verdict == "deadlock"
    assert "until actor Right" in text_of(found)


def test_a_wait_that_was_ended_between_the_samples_is_not_confirmed() -> None:
    scene, _, left, right = pair()
    sleeps_in(left, to(right, is_write=True))
    right.gets(scene.call(left, "other", by=right))
    left.threads[0].slices = 5
    scene.sample()
    left.threads[0].slices = 6
    scene.second_sample()

    assert not scene.diagnose().is_stuck


def ended(snapshot: Snapshot, parent: SceneProcess, exit_code: int) -> Snapshot:
    child = EndedChild(pid=77, parent_pid=parent.worker.pid, exit_code=exit_code, is_zombie=True)
    return changed(
        snapshot,
        samples=tuple(
            changed(
                sample,
                workers=tuple(
                    changed(worker, process=replace(worker.process, ended_children=(child,)))
                    if worker.worker_id == parent.worker_id and worker.process
                    else worker
                    for worker in sample.workers
                ),
            )
            for sample in snapshot.samples
        ),
    )


def stalled_reader() -> tuple[Diagnosis, Snapshot, SceneProcess]:
    scene, _, left, right = pair()
    sleeps_in(left, to(left))
    right.gets(scene.call(left, "other", by=right))
    snapshot = twice(scene)
    return diagnose(snapshot), snapshot, left


def test_a_dead_child_is_named_beside_a_wait_that_it_could_have_ended() -> None:
    _, snapshot, left = stalled_reader()

    failed, killed, done = (text_of(ended(snapshot, left, code)) for code in (3, -9, 0))

    assert "; its child process (pid 77) has ended with exit code 3 (a zombie)" in failed
    assert (
        "Next: The output of its parent process shows why the child process (pid 77) has ended with exit code 3"
        in failed
    )
    assert "has ended by signal SIGKILL" in killed
    assert "shows why the child" not in done
    assert "its child process (pid 77) has ended with exit code 0" in done
