"""The observed values of a process, from a reading of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dstack.observed.calls import Awaitables, Call, Executions, KernelObjects, Need, ProcessObject
from dstack.observed.processes import Coroutine, Halt, Process, StartPhase, Thread
from dstack.probes.node.node_figures import NodeFigures
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.children import is_cut_off
from dstack.probes.node.redaction import masked_locals
from dstack.probes.node.stacks.origins import exit_function, start_phase
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.target_process import ProcessReading, TargetProcess, ThreadReading
from dstack.probes.node.thread_stacks import is_event_loop

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


class ProcessValues:
    """Makes the observed values of one node's processes, their stacks entered into one table."""

    def __init__(self, table: StackTable, figures: NodeFigures) -> None:
        self._table = table
        self._figures = figures

    def process(self, process: TargetProcess, parent: TargetProcess | None = None) -> Process:
        """A process with its threads, coroutines and children; one below a worker or driver has this ``parent``."""
        reading, figures = process.reading, process.figures
        assert figures is not None
        cwd = proc.working_directory(process.pid)
        os_ids = {one.thread.thread_id: one.thread.os_thread_id for one in reading.threads}
        use = self._figures.cpu(process.pid, figures.birth)
        status = proc.status(process.pid)
        observed = Process(
            pid=process.pid,
            started_at=figures.started_at,
            parent_pid=process.parent_pid,
            name="" if process.parent_pid is None else process.title,
            access=reading.access,
            cpu_s=figures.cpu_s,
            rss_bytes=figures.rss_bytes,
            num_threads=figures.num_threads,
            state=STATES.get(figures.state, figures.state),
            paused_ms=round(reading.paused_ms, 2),
            tasks_read=reading.has_tasks,
            coroutines_read=reading.loops is not None and reading.loops.unread is None,
            concurrency_groups=reading.groups,
            threads=tuple(self._thread(one, reading, cwd, process.pid) for one in reading.threads),
            coroutines=reading.loops.observed(self._table, cwd, os_ids) if reading.loops else (),
            ended_tasks=reading.loops.observed_ended(self._table, cwd) if reading.loops else (),
            timers=tuple(reading.loops.timers) if reading.loops else (),
            children=tuple(self.process(child, process) for child in process.children if _is_there(child)),
            children_left_out=process.children_left_out,
            ended_children=(*process.ended_children, *reading.ended_children),
            is_cut_off=parent is not None and _is_cut_off(process, parent),
            process_groups=tuple(reading.memberships.groups),
            ledgers=reading.ledgers.ledgers,
            collectives=tuple(
                replace(one, stack=self._table.add_positions(list(positions), cwd))
                for one, positions in reading.ledgers.collectives
            ),
            rank=reading.memberships.rank,
            local_rank=reading.memberships.local_rank,
            world_size=reading.memberships.world_size,
            labels=dict(reading.labels),
            graph_stages=tuple(reading.graph_stages),
            queue_ends=reading.queue_ends,
            starting=_start_phase(process, reading),
            handled_signals=proc.handled_signals(status),
            cpu_percent=use.percent if use else None,
            cpu_over_s=use.over_s if use else 0.0,
            gpus=self._figures.gpus(process.pid),
            cuda=self._figures.cuda(process.pid),
            finished_spans=reading.finished_spans,
            library_states=reading.library_states,
            halt=halt_of(process.pid, status, reading.threads),
        )
        return observed if parent is None else _with_unique_ids(observed)

    def _thread(self, one: ThreadReading, reading: ProcessReading, cwd: str, pid: int) -> Thread:
        thread = one.thread
        return Thread(
            os_thread_id=thread.os_thread_id,
            name=thread.name,
            stack=self._table.add(thread.frames, cwd),
            role=one.role,
            on_cpu=thread.is_running and not one.is_stable,
            still=one.is_stable,
            torn=one.is_torn,
            sleeps=one.sleeps,
            sleep_left_s=None if one.sleep_left_s is None else round(one.sleep_left_s, 3),
            slices=one.slices,
            written_bytes=one.written_bytes,
            exits_in=exit_function(thread.frames, pid) if thread.os_thread_id == pid and not one.is_torn else None,
            task_id=_task_on(one, reading),
            call=one.call,
            timer=one.timer,
            locals=masked_locals(one.locals) if one.locals else None,
            spans=() if one.is_torn else one.spans,
            texts=dict(one.texts),
        )


def _with_unique_ids(child: Process) -> Process:
    """A child process with its pid in the ids of coroutines and awaited objects: a fork has those of its parent."""

    def own(ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"{one}/{child.pid}" for one in ids)

    def need_of(need: Need) -> Need:
        match need:
            case Awaitables():
                return replace(need, coroutines=own(need.coroutines))
            case Executions():
                return replace(need, coroutines=own(need.coroutines))
            case ProcessObject(object_id=object_id):
                reached_by = own(need.reached_by_coroutines)
                return replace(need, object_id=object_id and own([object_id])[0], reached_by_coroutines=reached_by)
            case _:
                return need

    def call_of(one: Thread | Coroutine) -> Call | None:
        call = one.call
        return replace(call, need=need_of(call.need), cut_short_by=own(call.cut_short_by)) if call else None

    coroutines = zip(child.coroutines, own(one.coroutine_id for one in child.coroutines), strict=True)
    ended = zip(child.ended_tasks, own(one.coroutine_id for one in child.ended_tasks), strict=True)
    return replace(
        child,
        threads=tuple(replace(one, call=call_of(one)) for one in child.threads),
        coroutines=tuple(replace(one, coroutine_id=id, call=call_of(one)) for one, id in coroutines),
        ended_tasks=tuple(replace(one, coroutine_id=id, held=own(one.held)) for one, id in ended),
    )


def _start_phase(process: TargetProcess, reading: ProcessReading) -> StartPhase | None:
    """What a worker's main thread does that has not come to its loop."""
    if process.target["is_driver"]:
        return None
    main = (one.thread.frames for one in reading.threads if one.thread.os_thread_id == process.pid)
    return start_phase(next(main, ()))


def halt_of(pid: int, status: Mapping[str, str], threads: Iterable[ThreadReading]) -> Halt | None:
    """What keeps a process from running, by its ``status``, or the first of these threads that sleeps uninterruptibly.

    Such a sleep is often a moment on a disk; threads in a wait that is known otherwise are left out.
    """
    state, tracer = status.get("State", "")[:1], int(status.get("TracerPid") or 0)
    if status.get("CoreDumping") == "1":  # Linux 4.15
        return Halt(kind="dumps core")
    if state == "t" or (state == "T" and tracer):
        return Halt(kind="traced", by=proc.name(tracer), tracer=tracer)
    if state == "T":
        return Halt(kind="stopped")
    asleep = (one for one in threads if one.call is None or isinstance(one.call.need, KernelObjects))
    ids = (one.thread.os_thread_id for one in asleep if one.is_stable and not one.sleeps)
    thread = next((one for one in ids if proc.thread_state(pid, one) == "D"), None)
    if thread is None:
        return None
    return Halt(kind="uninterruptible", by=proc.kernel_function(pid, thread), os_thread_id=thread)


def _is_there(child: TargetProcess) -> bool:
    return child.figures is not None and not child.is_gone


def _is_cut_off(child: TargetProcess, parent: TargetProcess) -> bool:
    if child.figures is None or parent.figures is None:
        return False
    return is_cut_off((child.pid, child.figures.birth), (parent.pid, parent.figures.birth))


def _task_on(one: ThreadReading, reading: ProcessReading) -> str | None:
    if is_event_loop(one.thread):
        return reading.loops.on_threads.get(one.thread.thread_id) if reading.loops else None
    return one.task_id
