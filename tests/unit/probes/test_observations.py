"""Answers of nodes are accepted whole or rejected, as nodes are not trusted, and merged without dstack's processes."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from dstack.analysis.diagnose import diagnose
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import dumps, loads
from dstack.model.snapshot import (
    GoneWorker,
    Job,
    Node,
    Sample,
    Snapshot,
    TaskAttempt,
    TaskEventWindow,
    TaskHistory,
    Worker,
    WorkerSample,
)
from dstack.observed.node import Cause, Disk, Failure, Gpu, HostFigures, NodeAnswer, StartingWorker
from dstack.observed.processes import Frame, Process, Thread
from dstack.probes import node, observations
from dstack.probes.connection.background import begin
from dstack.probes.connection.connect import Cluster
from dstack.probes.node import wire
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node_access.answers import MalformedAnswer, unpacked
from dstack.probes.node_access.node_readers import Reading
from dstack.probes.observations import Assembly, MergedAnswers, Observations
from dstack.probes.ray_state.control_plane import Inventory
from dstack.probes.ray_state.task_events import EndedTasks
from dstack.probes.ray_state.workers import Liveness
from dstack.report.text import report_text
from tests.fuzzing.mutations import ByValues
from tests.sampling import OPTIONS

WITH_LOCALS: wire.SampleOptions = {**OPTIONS, "locals": True, "deadline_s": 20.0}
MUTATIONS = 600
CHILD = [{"pid": 2, "started_at": 1.0, "threads": []}]


def answer() -> bytes:
    """A probe's answer about this process with a blocked thread, as it arrives from another node."""
    over = threading.Event()
    threading.Thread(target=over.wait, daemon=True).start()
    target: wire.ReadTarget = {"worker_id": "w", "pid": os.getpid(), "port": 0, "is_driver": True}
    result = NodeProbe().sample([target], WITH_LOCALS)
    over.set()
    plain = json.loads(msgspec.json.encode(result))
    threads = plain["processes"]["w"]["threads"]
    threads.sort(key=lambda one: not result.stacks[one["stack"]])  # the reading thread may have no frames
    threads[0]["call"] = {"site": "ray.get", "frame": 0, "need": {"kind": "refs", "refs": ["0" * 56]}}
    return json.dumps(plain).encode()


def arrived(plain: object) -> NodeAnswer:
    """An answer as it is decoded. Raises :class:`MalformedAnswer`."""
    return unpacked(zlib.compress(json.dumps(plain).encode()))


def snapshot_of(answer: NodeAnswer) -> Snapshot:
    """A snapshot of a node's answer. Raises :class:`MalformedAnswer`."""
    assembly = Assembly()
    processes, failures = assembly.add(["n"], answer, 1, among=["w"])
    return Snapshot(
        dstack_version="0",
        taken_at=0,
        address="",
        ray_version="",
        frames=assembly.frames,
        stacks=assembly.stacks,
        sources=assembly.sources,
        failures=tuple(failures),
        samples=(Sample(0, 1, workers=tuple(WorkerSample(one, process=processes[one]) for one in processes)),),
    )


def test_a_mutated_answer_is_accepted_whole_or_rejected() -> None:
    chance = random.Random(5)
    values = ByValues(answer())
    good = 0

    for _ in range(MUTATIONS):
        try:
            snapshot = snapshot_of(unpacked(zlib.compress(values.one(chance))))
        except MalformedAnswer:
            continue
        good += 1
        loads(dumps(snapshot))
        if good % 10 == 0:
            report_text(AnalysedSnapshot.of(snapshot))

    assert MUTATIONS / 10 < good < MUTATIONS


def one_thread(frame: int = 0, count: int = 1) -> list[dict[str, Any]]:
    call = {"site": "threading.Lock.acquire", "frame": frame, "need": {"kind": "object"}}
    return [{"os_thread_id": n, "name": "t", "stack": 0, "role": "user", "call": call} for n in range(count)]


def reply(depth: int, threads: list[dict[str, Any]], *, is_child: bool) -> NodeAnswer:
    """A probe's answer about a process, or also its child, whose threads have a stack of this depth."""
    process: dict[str, Any] = {"pid": 1, "started_at": 1.0, "threads": threads}
    if is_child:
        process = {"pid": 2, "started_at": 1.0, "threads": [], "children": [{**process, "parent_pid": 2}]}
    frames = [{"function": "f", "file": "f.py", "line": 1}]
    return arrived({"frames": frames, "stacks": [[0] * depth], "processes": {"w": process}, "clock": (1.0, 2.0)})


@pytest.mark.parametrize("is_child", [False, True])
def test_a_call_outside_of_its_stack_is_rejected(is_child: bool) -> None:
    assert loads(dumps(snapshot_of(reply(2, one_thread(frame=1), is_child=is_child))))

    with pytest.raises(MalformedAnswer):
        snapshot_of(reply(2, one_thread(frame=2), is_child=is_child))


@pytest.mark.parametrize("is_child", [False, True])
def test_too_many_frames_are_rejected(is_child: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observations, "MAX_FRAMES", 1_000)
    assert snapshot_of(reply(100, one_thread(count=10), is_child=is_child))

    with pytest.raises(MalformedAnswer):
        snapshot_of(reply(100, one_thread(count=11), is_child=is_child))


def test_the_host_figures_of_a_node_change_nothing_else() -> None:
    result = json.loads(answer())
    figures = result["host"]
    result["host"] = {**figures, "node_id": "other", "alive": False, "is_head": True, "clock_ahead_s": 99.0}

    assembly = Assembly()
    assembly.add(["n"], arrived(result), 1, clock_ahead_s=-7.5)

    host = msgspec.convert(figures, HostFigures)
    expected = Node(node_id="n", ip="10.0.0.1", host=host, clock_ahead_s=-7.5)
    assert assembly.with_host(Node(node_id="n", ip="10.0.0.1")) == expected
    assert assembly.with_host(Node("m", "10.0.0.1")) == Node("m", "10.0.0.1")


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it["processes"]["w"]["threads"][0].update(stack=-1),
        lambda it: it["stacks"].__setitem__(0, [-1]),
        lambda it: it["processes"]["w"].update(
            children=[{"pid": 1, "started_at": 1.0, "threads": [], "children": CHILD}]
        ),
        lambda it: it.pop("clock"),
        lambda it: it["frames"][0].update(origin="elsewhere"),
        lambda it: it["processes"]["w"].update(access="magic"),
        lambda it: it["processes"]["w"].update(cpu_percent=-1.0),
        lambda it: it["processes"]["w"].update(gpus=[{"index": -1, "memory_bytes": 0}]),
        lambda it: it["processes"]["w"].update(gpus=[{"index": 0, "memory_bytes": 0}] * 2_000),
        lambda it: it["host"].update(cpu_percent=1e300),
        lambda it: it["host"].update(disks=[{"use": "elsewhere", "path": "/", "total_bytes": 1, "free_bytes": 1}]),
        lambda it: it["host"].update(disks=[{"use": "session", "path": "/", "total_bytes": -1, "free_bytes": 1}]),
        lambda it: it["host"].update(gpus=[{"index": 0, "name": "x" * 1_000}]),
        lambda it: it["host"].update(gpus=[{"index": 0, "memory_used_bytes": "much"}]),
    ],
    ids=[
        "stack",
        "frame",
        "grandchild",
        "clock",
        "origin",
        "access",
        "use of CPU",
        "GPU",
        "GPUs",
        "host",
        "disk",
        "size",
        "name",
        "memory",
    ],
)
def test_an_answer_that_no_probe_gives_is_malformed(change: Callable[[Any], object]) -> None:
    result = json.loads(answer())
    assert snapshot_of(arrived(result))

    change(result)

    with pytest.raises(MalformedAnswer):
        snapshot_of(arrived(result))


def test_disks_and_gpus_of_a_node_are_typed_values() -> None:
    result = json.loads(answer())
    disk = {"use": "session", "path": "/tmp/ray", "total_bytes": 4, "free_bytes": 1}
    result["host"] = {"disks": [disk], "gpus": [{"index": 1, "utilisation_percent": 3}]}
    assembly = Assembly()
    assembly.add(["n"], arrived(result), 1)
    node = assembly.with_host(Node(node_id="n", ip="10.0.0.1"))

    assert node.host.disks == (Disk(use="session", path="/tmp/ray", total_bytes=4, free_bytes=1),)
    assert node.host.gpus == (Gpu(index=1, utilisation_percent=3.0),)


def test_every_cause_that_a_probe_names_is_one_of_the_model() -> None:
    """The node package cannot import the model, and an answer with another cause is rejected."""
    sources = [path.read_text() for path in Path(node.__file__).parent.rglob("*.py")]
    named = {cause for text in sources for cause in re.findall(r'cause="(\w+)"', text)}

    assert {"permission", "namespace", "ended", "timeout"} <= named <= {*get_args(Cause), "other"}


WORKERS = [Worker(worker_id=name, node_id="n", ip="10.0.0.1", port=1, pid=1) for name in ("own", "theirs")]


def process(stack: int) -> Process:
    thread = Thread(os_thread_id=1, name="", stack=stack, role="task")
    return Process(pid=1, started_at=0.0, threads=(thread,))


def test_nothing_of_own_processes_is_kept() -> None:
    record = Observations()
    answer = NodeAnswer(
        frames=tuple(Frame(function=function, file=f"{function}.py", line=1) for function in ("probe", "work")),
        stacks=((0,), (1,)),
        sources={"probe.py": {1: "probe()"}, "work.py": {1: "work()"}},
        processes={"own": process(0), "theirs": process(1)},
        clock=(0.0, 0.0),
    )

    merged = MergedAnswers(record, WORKERS, 1, lambda _: ["own"], Inventory())
    merged.add(Reading(["n"], answer))

    assert list(merged.processes) == ["theirs"]
    assert [frame.function for frame in record.assembly.frames] == ["work"]
    assert list(record.assembly.sources) == ["work.py"]


def test_the_spread_of_a_round_is_between_the_middles_of_its_readings_by_our_clock() -> None:
    merged = MergedAnswers(Observations(), [], 1, lambda _: (), Inventory())
    spreads = []
    for node_id, clock, ahead_s in (
        ("a", (100.0, 100.2), None),
        ("b", (105.1, 105.12), 5.0),
        ("c", (98.02, 98.1), -2.0),
    ):
        merged.add(Reading([node_id], NodeAnswer(clock=clock), ahead_s))
        spreads.append(merged.spread_ms)

    assert spreads == pytest.approx([0.0, 10.0, 50.0])


ABSENT = Failure(stage="task events", reason="Ray has none", cause="missing", remedy="Report them")
LATE = Failure(stage="task events", reason="too late", cause="timeout")
ATTEMPT = TaskAttempt(task_id="1a" * 24, name="step", kind="NORMAL_TASK", job_id="01000000", states={"RUNNING": 1.0})
NONE, SOME = TaskHistory(asked_at=1.0), TaskHistory(asked_at=1.0, attempts=(ATTEMPT,), kept=1)


def with_events(
    ended: EndedTasks,
    history: tuple[TaskHistory | None, Failure | None] | None = None,
    *,
    executed: int = 3,
    age_s: float = 60.0,
    ahead_s: float = 0.0,
) -> Snapshot:
    """A snapshot of a cluster whose job began some time ago, by the clock of the head, which may be ahead of ours."""
    record = Observations(history=begin(lambda: history) if history else None, ended_tasks=begin(lambda: ended))
    worker = WorkerSample(worker_id="theirs", executed_tasks=executed)
    record.samples.append(Sample(began_s=0.0, ended_s=0.1, workers=(worker,)))
    head = Node(node_id="n", ip="10.0.0.1", is_head=True)
    record.assembly.add(["n"], NodeAnswer(clock=(0.0, 0.0), host=HostFigures()), 1, clock_ahead_s=ahead_s)
    inventory = Inventory(nodes=(head,), oldest_job_at=record.taken_at + ahead_s - age_s)
    return record.snapshot(Cluster("10.0.0.1:6379", "2.60.0"), inventory, Liveness())


NO_ENDS = EndedTasks(window=TaskEventWindow(kept=0, read=0), failure=ABSENT)
ENDS = EndedTasks(window=TaskEventWindow(kept=5, read=5))


@pytest.mark.parametrize("history", [None, (NONE, ABSENT)])
@pytest.mark.parametrize("ahead_s", [0.0, 1000.0, -1000.0])
def test_no_events_of_tasks_that_ran_are_a_failure_once(
    history: tuple[TaskHistory | None, Failure | None] | None, ahead_s: float
) -> None:
    snapshot = with_events(NO_ENDS, history, ahead_s=ahead_s)

    assert (snapshot.failures, snapshot.history, snapshot.lack_of_events) == ((ABSENT,), None, ABSENT)
    assert diagnose(snapshot).gaps == ()


@pytest.mark.parametrize("some", [{"executed": 0}, {"age_s": 2.0}])
def test_no_events_are_no_failure_before_any_were_due(some: dict[str, Any]) -> None:
    snapshot = with_events(NO_ENDS, (NONE, ABSENT), **some)

    assert (snapshot.failures, snapshot.history) == ((), NONE)


def test_what_a_history_lacks_is_its_own_failure() -> None:
    partial = with_events(ENDS, (SOME, LATE))
    late = with_events(NO_ENDS, (SOME, None))
    missing = with_events(ENDS, (None, LATE))

    assert (partial.failures, partial.history and partial.history.kept) == ((LATE,), 1)
    assert (late.failures, late.history and late.history.kept) == ((), 1)
    assert (missing.failures, missing.history) == ((LATE,), None)


def test_workers_that_ray_lists_or_that_run_for_others_are_not_starting() -> None:
    record = Observations()
    listed = Worker(worker_id="listed", node_id="n", ip="10.0.0.1", port=5, pid=5)
    gone = GoneWorker(worker_id="gone", node_id="n", pid=6)
    inventory = Inventory(
        nodes=(Node(node_id="n", ip="10.0.0.1"),),
        jobs=(Job(job_id="01000000"),),
        workers=(listed,),
        gone_workers={"gone": gone},
    )
    ids = (
        ("new", 1, "n", "01000000"),
        ("any", 2, "n", None),
        ("own", 3, "n", "02000000"),
        ("elsewhere", 4, "m", None),
        ("same", 5, "n", None),
        ("gone", 6, "n", None),
        ("listed", 7, "n", None),
    )
    starting = tuple(
        StartingWorker(
            worker_id=worker_id,
            node_id=node_id,
            job_id=job_id,
            process=Process(pid=pid, started_at=0.0, starting="import"),
        )
        for worker_id, pid, node_id, job_id in ids
    )

    merged = MergedAnswers(record, [listed], 1, lambda _: (), inventory)
    merged.add(Reading(["n"], NodeAnswer(clock=(0.0, 0.0), starting=starting)))
    samples = list(record.add_starting(merged.starting, inventory))

    assert [sample.worker_id for sample in samples] == ["new", "any"]
    assert all(sample.running_task_ids == () for sample in samples)
    assert record.starting["new"] == Worker(
        worker_id="new", node_id="n", ip="10.0.0.1", port=0, pid=1, job_id="01000000"
    )
