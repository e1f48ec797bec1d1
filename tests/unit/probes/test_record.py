"""The answers of nodes are merged without the processes of dstack itself."""

from __future__ import annotations

from dstack.model.snapshot import GoneWorker, Job, Node, Worker
from dstack.observed.node import NodeAnswer, StartingWorker
from dstack.observed.processes import Frame, Process, Thread
from dstack.probes.node_access.node_readers import Reading
from dstack.probes.ray_state.control_plane import Inventory
from dstack.probes.record import MergedAnswers, Record

WORKERS = [Worker(worker_id=name, node_id="n", ip="10.0.0.1", port=1, pid=1) for name in ("own", "theirs")]


def process(stack: int) -> Process:
    thread = Thread(os_thread_id=1, name="", stack=stack, role="task")
    return Process(pid=1, started_at=0.0, threads=(thread,))


def test_nothing_of_own_processes_is_kept() -> None:
    record = Record()
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


def test_workers_that_ray_lists_or_that_run_for_others_are_not_starting() -> None:
    record = Record()
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
