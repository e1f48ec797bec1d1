"""Child processes of workers: dependencies with a name and without a known end, shown below their worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.views.all_stacks import Stacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.stack_pages import child_threads
from dstack.errors import SnapshotFileError
from dstack.files.snapshot_file import dumps, load, loads
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Snapshot
from dstack.model.vertex_keys import ChildThreadKey
from dstack.observed.calls import Call, Children, Executions, HeldRefs, ProcessObject, Refs, Unreadable
from dstack.observed.node import Ref
from dstack.observed.processes import Coroutine, Frame, Process, Thread
from dstack.report.check_json import check_json
from dstack.report.text import report_text
from tests.examples.recorded import recorded
from tests.unit.scenes import JOB, Scene, SceneProcess, SceneThread

JOIN = "multiprocessing.Process.join"
PID = 77
FRAME = Frame(function="load", file="/srv/app/loader.py", line=7)
LOCK = Call(site="threading.Lock.acquire", frame=0, need=ProcessObject())


def joins(thread: SceneThread, *pids: int, timeout_s: float | None = None) -> None:
    thread.call = Call(site=JOIN, frame=0, need=Children(pids=pids), timeout_s=timeout_s)


def waiting(timeout_s: float | None = None) -> tuple[Scene, SceneProcess]:
    """A driver that gets a call of an actor, which waits for a process that it has started."""
    scene = Scene()
    driver, loader = scene.driver(), scene.actor("Loader")
    call = scene.call(loader, "load", by=driver)
    loader.runs(call)
    joins(loader.threads[0], PID, timeout_s=timeout_s)
    driver.gets(call)
    return scene, loader


def with_child(snapshot: Snapshot, parent: SceneProcess, left_out: int = 0, **thread: Any) -> Snapshot:
    """The snapshot, with a child of one thread in the first sample of this process."""
    return with_children(snapshot, parent, [Child({PID: thread})], left_out=left_out, samples=1)


@dataclass
class Child:
    """A child process: the fields of its threads by thread id, and its own fields."""

    threads: dict[int, dict[str, Any]]
    pid: int = PID
    fields: dict[str, Any] = field(default_factory=dict)

    def process(self, parent: SceneProcess, stack: int) -> Process:
        threads = tuple(
            Thread(os_thread_id=tid, name="MainThread", stack=stack, role="user", **known)
            for tid, known in self.threads.items()
        )
        known = {"parent_pid": parent.worker.pid, "name": "python", **self.fields}
        return Process(pid=self.pid, started_at=1.7e9, threads=threads, **known)


def with_children(
    snapshot: Snapshot, parent: SceneProcess, children: Iterable[Child], *, left_out: int = 0, samples: int = 2
) -> Snapshot:
    """The snapshot, with these children in the first samples of this process."""
    frames, stacks = (*snapshot.frames, FRAME), (*snapshot.stacks, (len(snapshot.frames),))
    found = tuple(child.process(parent, len(stacks) - 1) for child in children)
    changed = tuple(
        replace(
            sample,
            workers=tuple(
                replace(worker, process=dataclasses.replace(worker.process, children=found, children_left_out=left_out))
                if worker.worker_id == parent.worker_id and worker.process
                else worker
                for worker in sample.workers
            ),
        )
        for sample in snapshot.samples[:samples]
    )
    return replace(snapshot, frames=frames, stacks=stacks, samples=(*changed, *snapshot.samples[samples:]))


def twice(scene: Scene) -> Snapshot:
    return scene.sample().second_sample().snapshot()


def kinds(diagnosis: Diagnosis) -> list[str]:
    return [finding.kind for finding in diagnosis.findings]


def test_a_chain_ends_in_the_child_with_its_pid_and_line() -> None:
    scene, loader = waiting()

    snapshot = with_child(twice(scene), loader, call=LOCK)
    diagnosis = diagnose(snapshot)

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, finding.kind) == ("running", "running")
    assert finding.summary.startswith(
        "driver train.py waits for Loader.load of actor 00000000; all depends on child process (pid 77)"
    )
    (step,) = [step for step in finding.explanation if "child process" in step.text]
    assert (step.file, step.line) == (FRAME.file, FRAME.line)


def test_a_wait_for_a_child_without_a_ray_waiter_is_no_finding() -> None:
    scene = Scene()
    driver = scene.driver()
    joins(driver.threads[0], PID)

    assert kinds(diagnose(with_child(twice(scene), driver))) == []


def test_a_cycle_through_a_child_may_proceed() -> None:
    scene, loader = waiting()
    other = scene.actor("Other")
    call = scene.call(other, "run", by=loader)
    other.runs(call).gets(loader.running[0])

    assert "deadlock" not in kinds(diagnose(with_child(twice(scene), loader)))


def test_a_deadlock_beside_a_wait_for_a_child_is_found() -> None:
    scene, loader = waiting()
    left, right = scene.actor("Left"), scene.actor("Right")
    ping, pong = scene.call(left, "ping", by=loader), scene.call(right, "pong", by=left)
    left.runs(ping).gets(pong)
    right.runs(pong).gets(ping)

    assert kinds(diagnose(with_child(twice(scene), loader))) == ["deadlock", "running"]


def parked() -> tuple[Scene, SceneProcess]:
    scene = Scene()
    driver, gate = scene.driver(), scene.actor("Gate")
    call = scene.call(gate, "enter", by=driver)
    gate.runs(call).is_in("multiprocessing.Connection.recv", "0x1")
    driver.gets(call)
    return scene, gate


def test_no_chain_is_stalled_while_a_child_may_run() -> None:
    scene, gate = parked()
    snapshot = twice(scene)

    def verdicts(left_out: int = 0, **thread: Any) -> list[str]:
        return kinds(diagnose(with_children(snapshot, gate, [Child({PID: thread})], left_out=left_out)))

    assert kinds(diagnose(snapshot)) == ["stalled"]
    assert verdicts(call=LOCK) == ["stalled"]
    assert verdicts(on_cpu=True) == ["running"]
    assert verdicts() == ["running"]
    assert verdicts(left_out=1, call=LOCK) == ["running"]
    assert kinds(diagnose(with_child(snapshot, gate, call=LOCK))) == ["running"], "it has ended, or was not read again"


def test_a_child_is_below_its_worker_in_report_json_and_stacks() -> None:
    scene, loader = waiting()
    snapshot = with_child(twice(scene), loader, call=LOCK)
    analysed = AnalysedSnapshot.of(snapshot)

    _, _, report = report_text(analysed, details=True).partition("Child processes")
    assert "child process python  pid 77" in report
    assert "main thread waits in threading.Lock.acquire  load" in report
    assert b'"child_processes": [' in check_json(analysed)

    torn = with_child(twice(scene), loader, torn=True)
    text = report_text(AnalysedSnapshot.of(torn), details=True)
    assert "main thread rests (stack may be inconsistent: the thread ran while it was read)" in text
    assert b'"torn": true' in check_json(AnalysedSnapshot.of(torn))

    stacks = Stacks(SampleIndex(snapshot, snapshot.samples[0]), analysed.diagnosis.vertices)
    (child,) = child_threads(stacks.index, loader.worker_id)
    (thread,) = child.threads
    page = stacks.pages.page(thread.key)
    assert page is not None
    assert page.name == "main thread of child process (pid 77)"
    assert [frame for run in page.runs for _, frame in run.frames] == [FRAME]


def test_a_file_keeps_children_and_loading_rejects_absent_stacks() -> None:
    scene, loader = waiting()
    snapshot = with_child(twice(scene), loader)

    assert loads(dumps(snapshot)) == snapshot
    with pytest.raises(SnapshotFileError, match=r"\.children\[0\]\.threads"):
        loads(dumps(replace(snapshot, stacks=snapshot.stacks[:-1])))


def with_changed_child(snapshot: Snapshot, parent: SceneProcess, **fields: Any) -> Snapshot:
    """The snapshot, with other fields of its child process."""
    first, *others = snapshot.samples
    workers = tuple(
        replace(
            one,
            process=dataclasses.replace(
                one.process, children=(dataclasses.replace(one.process.children[0], **fields),)
            ),
        )
        if one.worker_id == parent.worker_id and one.process
        else one
        for one in first.workers
    )
    return replace(snapshot, samples=(replace(first, workers=workers), *others))


def test_a_file_with_invalid_child_processes_is_rejected() -> None:
    scene, loader = waiting()
    snapshot = with_child(twice(scene), loader)
    deeper = with_changed_child(snapshot, loader, children=(Process(pid=78, parent_pid=PID, started_at=1.7e9),))
    misplaced = with_changed_child(snapshot, loader, coroutines=(Coroutine(coroutine_id="0x1", name="c", stack=999),))

    with pytest.raises(SnapshotFileError, match=r"a child process has children - at .*\.children\[0\]\.children"):
        loads(dumps(deeper))
    with pytest.raises(SnapshotFileError, match=r"\.children\[0\]\.coroutines"):
        loads(dumps(misplaced))


def test_a_lock_lost_by_a_fork_has_the_line_of_the_fork_and_its_children_are_no_peers_of_threads() -> None:
    analysed = AnalysedSnapshot.of(load(recorded("hangs/lock_held_at_fork")))

    (finding,) = analysed.diagnosis.findings
    assert "the process forked at lock_held_at_fork.py:41 inherits locks" in str(finding.advice)
    assert analysed.stacks.outliers() == {}


# Forks that wait for Ray

REF = f"{'a' * 16}{'f' * 24}{JOB}01000000"
GET = Call(site="ray.get", frame=0, need=Refs(refs=(REF,)))


def sampled_twice(scene: Scene) -> Snapshot:
    """The snapshot after two full samples, as dstack takes them where a child waits."""
    return scene.sample().sample().snapshot()


def fork(call: Call = GET, pid: int = PID, *, is_cut_off: bool = True) -> Child:
    return Child({pid: {"call": call, "still": True}}, pid, {"is_cut_off": is_cut_off})


def test_a_fork_in_ray_get_hangs_with_its_waiters() -> None:
    scene, loader = waiting()

    diagnosis = diagnose(with_children(sampled_twice(scene), loader, [fork()]))

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, finding.kind, finding.confirmed) == ("hang", "orphaned", True)
    actor = loader.actor
    assert actor is not None
    assert finding.summary == (
        f"child process (pid 77) of actor Loader {actor.actor_id[:8]} waits in ray.get at loader.py:7 "
        "in a forked process, where Ray does not work"
    )
    assert len(finding.blocked_behind) == 2
    assert "spawn" in str(finding.advice)
    (step,) = [step for step in finding.explanation if "in a forked process" in step.text]
    assert (step.file, step.line) == (FRAME.file, FRAME.line)


def test_a_fork_in_ray_get_without_a_waiter_is_reported() -> None:
    scene = Scene()
    driver = scene.driver()
    driver.threads[0].is_in("multiprocessing.Queue.get", timeout_s=5.0)

    diagnosis = diagnose(with_children(sampled_twice(scene), driver, [fork(), fork(pid=78)]))

    (finding,) = diagnosis.findings
    assert (diagnosis.verdict, finding.kind) == ("hang", "orphaned")
    assert finding.summary.startswith("2 child processes of driver train.py: each waits in ray.get at loader.py:7")
    (parent,) = [step.text for step in finding.explanation if step.text.startswith("Their parent: driver train.py")]
    assert "waits in multiprocessing.Queue.get, timeout 5 s" in parent


@pytest.mark.parametrize(
    "child",
    [
        fork(is_cut_off=False),
        Child({PID: {"call": GET, "still": False}}, fields={"is_cut_off": True}),
        fork(dataclasses.replace(GET, timeout_s=60.0)),
        fork(dataclasses.replace(GET, need=Unreadable(reason="its memory could not be read"))),
        fork(dataclasses.replace(GET, need=HeldRefs())),
    ],
    ids=["spawned or connected by itself", "not known to be stable", "timeout", "unread", "refs unknown"],
)
def test_another_call_in_a_child_is_no_hang(child: Child) -> None:
    scene, loader = waiting()

    assert diagnose(with_children(sampled_twice(scene), loader, [child])).verdict == "running"


def test_a_fork_can_get_a_value_in_shared_memory_but_none_of_an_owner() -> None:
    for size_bytes, verdict in ((10_000_000, "running"), (8, "hang")):
        scene, loader = waiting()
        snapshot = with_children(sampled_twice(scene), loader, [fork()])
        known = Ref(ref=REF, holder_id=loader.worker_id, state="FINISHED", size_bytes=size_bytes)
        samples = tuple(replace(sample, refs=(*sample.refs, known)) for sample in snapshot.samples)

        assert diagnose(replace(snapshot, samples=samples)).verdict == verdict


def test_a_fork_must_be_in_the_same_call_in_both_samples() -> None:
    scene, loader = waiting()
    snapshot = sampled_twice(scene)
    first, second = with_children(snapshot, loader, [fork()]), with_children(snapshot, loader, [fork(LOCK)])

    moved = replace(first, samples=(first.samples[0], second.samples[1]))
    unread = with_children(snapshot, loader, [fork()], samples=1)

    assert [diagnose(one).verdict for one in (moved, unread)] == ["running", "running"]


def test_a_chain_continues_through_children_and_their_threads() -> None:
    """The child joins a thread of its own, which waits for a grandchild, which is in ray.get."""
    scene, loader = waiting()
    join = Call(site="thread.join", frame=0, need=Executions(threads=(177,)))
    waits = Call(site=JOIN, frame=0, need=Children(pids=(78,)))
    threads = {PID: {"call": join, "still": True}, 177: {"call": waits, "still": True}}

    diagnosis = diagnose(with_children(sampled_twice(scene), loader, [Child(threads), fork(pid=78)]))

    (finding,) = diagnosis.findings
    assert finding.kind == "orphaned"
    assert len(finding.blocked_behind) == 4


def test_threads_of_a_child_that_wait_for_each_other_are_a_deadlock_and_its_parent_is_behind() -> None:
    scene, loader = waiting()
    calls = {PID: 177, 177: PID}
    threads = {
        one: {"call": Call(site="thread.join", frame=0, need=Executions(threads=(other,))), "still": True}
        for one, other in calls.items()
    }

    diagnosis = diagnose(with_children(sampled_twice(scene), loader, [Child(threads)]))

    (finding,) = diagnosis.findings
    assert (finding.kind, finding.confirmed) == ("deadlock", True)
    assert {*finding.members} == {ChildThreadKey(loader.worker_id, PID, thread) for thread in calls}
    assert len(finding.blocked_behind) == 2


def test_any_process_of_a_pool_may_give_its_result() -> None:
    """Behind the forks only where all of them wait for Ray."""
    for number_of_forks, behind in ((2, 2), (1, 0)):
        scene, loader = waiting()
        joins(loader.threads[0], PID, PID + 1)
        idle = Child({PID + 1: {"still": True}}, PID + 1, {"is_cut_off": True})
        children = [fork(), fork(pid=PID + 1)][:number_of_forks]

        found = with_children(sampled_twice(scene), loader, [*children, *([idle] * (2 - number_of_forks))])

        orphaned = [finding for finding in diagnose(found).findings if finding.kind == "orphaned"]
        assert [len(finding.blocked_behind) for finding in orphaned] == [behind]


def test_no_thread_of_the_parent_is_joined_to_a_coroutine_of_its_child() -> None:
    """Ids in a child have its pid; those of a made-up or changed file may be the same as one of the parent's."""
    scene, loader = waiting()
    loader.threads[0].call = Call(site="asyncio.gather", frame=0, need=Executions(coroutines=("0x1",)))
    of_library = Coroutine(coroutine_id="0x1", name="c", stack=len(twice(scene).stacks) + 1)
    snapshot = with_children(twice(scene), loader, [Child({PID: {}}, fields={"coroutines": (of_library,)})])

    assert diagnose(replace(snapshot, stacks=(*snapshot.stacks, ()))).verdict == "running"
