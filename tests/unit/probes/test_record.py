"""The answers of nodes are merged without the processes of dstack itself."""

from __future__ import annotations

from dstack.model import Worker
from dstack.observed import Frame, Process, Thread
from dstack.observed_node import NodeAnswer
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
