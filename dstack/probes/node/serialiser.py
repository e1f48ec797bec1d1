"""A reading of a process as the plain data of :mod:`dstack.probes.node.wire`."""

from __future__ import annotations

from collections.abc import Sequence

from dstack.probes.node.figures import NodeFigures
from dstack.probes.node.process import Process
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.children import is_cut_off
from dstack.probes.node.reading import Problem, ProcessReading, ThreadReading
from dstack.probes.node.redaction import masked_locals
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.threads import is_event_loop
from dstack.probes.node.wire import FailureData, ProcessData, ThreadData

STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk-sleep",
    "T": "stopped",
    "t": "tracing-stop",
    "Z": "zombie",
    "X": "dead",
    "I": "idle",
}
"""The kernel's letters in the words of psutil."""


class Serialiser:
    """Readings of one node as plain data, their stacks entered into one table."""

    def __init__(self, table: StackTable, figures: NodeFigures) -> None:
        self._table = table
        self._figures = figures

    def process(self, process: Process) -> ProcessData:
        """A process with its threads, coroutines and children."""
        reading = process.reading
        assert process.figures is not None
        cwd = proc.working_directory(process.pid)
        os_ids = {one.thread.thread_id: one.thread.os_thread_id for one in reading.threads}
        figures = process.figures
        data: ProcessData = {
            "pid": process.pid,
            "started_at": figures.started_at,
            "cpu_s": figures.cpu_s,
            "rss_bytes": figures.rss_bytes,
            "num_threads": figures.num_threads,
            "state": STATES.get(figures.state, figures.state),
            "access": reading.access,
            "paused_ms": round(reading.paused_ms, 2),
            "tasks_read": reading.has_tasks,
            "coroutines_read": reading.loops is not None and reading.loops.unread is None,
            "concurrency_groups": reading.groups,
            "threads": [self._thread(one, reading, cwd) for one in reading.threads],
            "coroutines": reading.loops.as_plain(self._table, cwd, os_ids) if reading.loops else [],
            "children": [self._child(child, process) for child in process.children if _is_there(child)],
            "children_left_out": process.children_left_out,
            "process_groups": list(reading.memberships.groups),
            "rank": reading.memberships.rank,
            "local_rank": reading.memberships.local_rank,
            "world_size": reading.memberships.world_size,
            "labels": dict(reading.labels),
        }
        if use := self._figures.cpu(process.pid, figures.birth):
            data["cpu_percent"], data["cpu_over_s"] = use.percent, use.over_s
        if (gpus := self._figures.gpus(process.pid)) is not None:
            data["gpus"] = gpus
        if reading.graph_stages:
            data["graph_stages"] = list(reading.graph_stages)
        if process.parent_pid is not None:
            data["parent_pid"], data["name"] = process.parent_pid, process.title
        return data

    def _child(self, child: Process, parent: Process) -> ProcessData:
        """A process below a worker or driver."""
        data = self.process(child)
        if child.figures and parent.figures:
            data["is_cut_off"] = is_cut_off((child.pid, child.figures.birth), (parent.pid, parent.figures.birth))
        return data

    def _thread(self, one: ThreadReading, reading: ProcessReading, cwd: str) -> ThreadData:
        thread = one.thread
        data: ThreadData = {
            "os_thread_id": thread.os_thread_id,
            "name": thread.name,
            "stack": self._table.add(thread.frames, cwd),
            "role": one.role,
            "on_cpu": thread.is_running and not one.is_stable,
            "still": one.is_stable,
            "torn": one.is_torn,
            "sleeps": one.sleeps,
            "task_id": _task_on(one, reading),
        }
        if one.call:
            data["call"] = one.call
        if one.locals:
            data["locals"] = masked_locals(one.locals)
        return data


def _is_there(child: Process) -> bool:
    return child.figures is not None and not child.is_gone


def _task_on(one: ThreadReading, reading: ProcessReading) -> str | None:
    if is_event_loop(one.thread):
        return reading.loops.on_threads.get(one.thread.thread_id) if reading.loops else None
    return one.task_id


def failures_of(process: Process, problems: Sequence[Problem]) -> list[FailureData]:
    """The problems of a process as failures."""
    return [
        {
            "stage": problem.stage,
            "reason": problem.reason,
            "cause": problem.cause,
            "remedy": problem.remedy,
            "pid": process.pid,
            "worker_id": process.worker_id,
            "elapsed_s": process.elapsed_s,
        }
        for problem in problems
    ]
