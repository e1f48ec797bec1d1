"""Processes that workers start themselves: waited for by name, never released by anybody, shown below their worker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.observed import Observed
from dstack.analysis.stacks import Stacks
from dstack.diagnosis import Diagnosis
from dstack.errors import SnapshotFileError
from dstack.model import BlockedCall, Coroutine, Frame, Process, Snapshot, Thread
from dstack.report.check_json import check_json
from dstack.report.text import report_text
from dstack.snapshot_file import dumps, loads
from tests.unit.scenes import Proc, Scene, Strand

JOIN = "multiprocessing.Process.join"
PID = 77
FRAME = Frame(function="load", file="/srv/app/loader.py", line=7)
LOCK = BlockedCall(kind="lock", frame=0, what="threading.Lock.acquire")


def joins(strand: Strand, *pids: int, timeout_s: float | None = None) -> None:
    strand.call = BlockedCall(kind="other", frame=0, what=JOIN, child_pids=pids, timeout_s=timeout_s)


def waiting(timeout_s: float | None = None) -> tuple[Scene, Proc]:
    """A driver that gets from an actor which waits for a process that it has started."""
    scene = Scene()
    driver, loader = scene.driver(), scene.actor("Loader")
    call = scene.call(loader, "load", by=driver)
    loader.runs(call)
    joins(loader.strands[0], PID, timeout_s=timeout_s)
    driver.gets(call)
    return scene, loader


def with_child(snapshot: Snapshot, parent: Proc, left_out: int = 0, **thread: Any) -> Snapshot:
    """The snapshot, in whose first sample a process has a child with one thread."""
    frames, stacks = (*snapshot.frames, FRAME), (*snapshot.stacks, (len(snapshot.frames),))
    main = Thread(os_thread_id=PID, name="MainThread", stack=len(stacks) - 1, role="user", **thread)
    child = Process(pid=PID, parent_pid=parent.worker.pid, started_at=1.7e9, name="python", threads=(main,))
    first, *others = snapshot.samples
    workers = tuple(
        replace(worker, process=replace(worker.process, children=(child,), children_left_out=left_out))
        if worker.worker_id == parent.worker_id and worker.process
        else worker
        for worker in first.workers
    )
    return replace(snapshot, frames=frames, stacks=stacks, samples=(replace(first, workers=workers), *others))


def twice(scene: Scene) -> Snapshot:
    return scene.look().look_again().snapshot()


def kinds(diagnosis: Diagnosis) -> list[str]:
    return [finding.kind for finding in diagnosis.findings]


def test_a_chain_ends_in_the_child_by_its_pid_at_its_line() -> None:
    scene, loader = waiting()

    snapshot = with_child(twice(scene), loader, call=LOCK)
    diagnosis = diagnose(snapshot)

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, finding.kind) == ("blocked", "blocked")
    assert finding.summary.startswith("2 wait, in the end for the child process (pid 77)")
    (step,) = [step for step in finding.explanation if "child process" in step.text]
    assert (step.file, step.line) == (FRAME.file, FRAME.line)


def test_without_anybody_who_waits_through_ray_a_wait_for_a_child_is_no_finding() -> None:
    scene = Scene()
    driver = scene.driver()
    joins(driver.strands[0], PID)

    assert kinds(diagnose(with_child(twice(scene), driver))) == []


def test_who_waits_for_a_child_and_is_waited_for_in_a_circle_may_still_go_on() -> None:
    scene, loader = waiting()
    other = scene.actor("Other")
    call = scene.call(other, "run", by=loader)
    other.runs(call).gets(loader.running[0])

    assert "deadlock" not in kinds(diagnose(with_child(twice(scene), loader)))


def test_a_deadlock_beside_it_is_still_one() -> None:
    scene, loader = waiting()
    left, right = scene.actor("Left"), scene.actor("Right")
    ping, pong = scene.call(left, "ping", by=loader), scene.call(right, "pong", by=left)
    left.runs(ping).gets(pong)
    right.runs(pong).gets(ping)

    assert kinds(diagnose(with_child(twice(scene), loader))) == ["deadlock", "blocked"]


def parked() -> tuple[Scene, Proc]:
    scene = Scene()
    driver, gate = scene.driver(), scene.actor("Gate")
    call = scene.call(gate, "enter", by=driver)
    gate.runs(call).is_in("multiprocessing.Connection.recv", "0x1")
    driver.gets(call)
    return scene, gate


def test_nothing_stands_still_while_a_child_may_run() -> None:
    scene, gate = parked()
    snapshot = twice(scene)

    assert kinds(diagnose(snapshot)) == ["stalled"]
    assert kinds(diagnose(with_child(snapshot, gate, call=LOCK))) == ["stalled"]
    assert kinds(diagnose(with_child(snapshot, gate, on_cpu=True))) == ["blocked"]
    assert kinds(diagnose(with_child(snapshot, gate))) == ["blocked"]
    assert kinds(diagnose(with_child(snapshot, gate, left_out=1, call=LOCK))) == ["blocked"]


def test_it_is_told_below_its_worker_in_report_json_and_stacks() -> None:
    scene, loader = waiting()
    snapshot = with_child(twice(scene), loader, call=LOCK)
    diagnosis = diagnose(snapshot)

    _, _, report = report_text(snapshot, diagnosis).partition("Child processes")
    assert "child process python  pid 77" in report
    assert "main thread waits in threading.Lock.acquire  load" in report
    assert b'"child_processes": [' in check_json(snapshot, diagnosis)

    torn = with_child(twice(scene), loader, torn=True)
    text = report_text(torn, diagnose(torn))
    assert "main thread rests (stack may be inconsistent: the thread ran while it was read)" in text
    assert b'"torn": true' in check_json(torn, diagnose(torn))

    stacks = Stacks(Observed(snapshot, snapshot.samples[0]), diagnosis.vertices)
    (child,) = stacks.children_of(loader.worker_id)
    (strand,) = child.strands
    page = stacks.stack(strand.key)
    assert page is not None
    assert page.name == "main thread of child process (pid 77)"
    assert [frame for run in page.runs for _, frame in run.frames] == [FRAME]


def test_a_file_keeps_children_and_refuses_stacks_that_are_not_there() -> None:
    scene, loader = waiting()
    snapshot = with_child(twice(scene), loader)

    assert loads(dumps(snapshot)) == snapshot
    with pytest.raises(SnapshotFileError, match=r"\.children\[0\]\.threads"):
        loads(dumps(replace(snapshot, stacks=snapshot.stacks[:-1])))


def with_changed_child(snapshot: Snapshot, parent: Proc, **fields: Any) -> Snapshot:
    """The snapshot, whose child process has other fields."""
    first, *others = snapshot.samples
    workers = tuple(
        replace(one, process=replace(one.process, children=(replace(one.process.children[0], **fields),)))
        if one.worker_id == parent.worker_id and one.process
        else one
        for one in first.workers
    )
    return replace(snapshot, samples=(replace(first, workers=workers), *others))


def test_a_file_in_which_a_child_process_has_children_or_misplaced_coroutines_is_refused() -> None:
    scene, loader = waiting()
    snapshot = with_child(twice(scene), loader)
    deeper = with_changed_child(snapshot, loader, children=(Process(pid=78, parent_pid=PID, started_at=1.7e9),))
    misplaced = with_changed_child(snapshot, loader, coroutines=(Coroutine(coroutine_id="0x1", name="c", stack=999),))

    with pytest.raises(SnapshotFileError, match=r"children of a child process - at .*\.children\[0\]\.children"):
        loads(dumps(deeper))
    with pytest.raises(SnapshotFileError, match=r"\.children\[0\]\.coroutines"):
        loads(dumps(misplaced))


@pytest.mark.parametrize("minor", [0, 1, 2])
def test_a_child_process_in_a_file_of_an_older_format_is_a_process_with_a_parent(minor: int) -> None:
    scene, loader = waiting()
    document = json.loads(dumps(with_child(twice(scene), loader)))
    document["version"] = [1, minor]
    (process,) = [one["process"] for one in document["samples"][0]["workers"] if one["process"].get("children")]
    thread = {"os_thread_id": PID, "name": "MainThread", "stack": 0, "role": "user"}
    old = {"pid": PID, "parent_pid": 5, "started_at": 1.7e9, "name": "python", "num_threads": 1, "state": "sleeping"}
    process["children"] = [{**old, "paused_ms": 3.5, "threads": [thread]}]

    (child,) = [
        child
        for worker in loads(json.dumps(document).encode()).samples[0].workers
        if worker.process
        for child in worker.process.children
    ]

    assert (child.pid, child.parent_pid, child.name, child.paused_ms) == (PID, 5, "python", 3.5)
    assert child.main_thread is not None
    assert not child.main_thread.torn
