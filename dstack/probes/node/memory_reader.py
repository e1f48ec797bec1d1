"""Reads a process from its memory: the frames of its threads, what each of them waits for, and its coroutines.

All threads are read together. A reading of a thread is consistent if the thread did not run meanwhile. A thread that
ran is read again on its own, until it rests during a reading, or until two readings of its frames agree.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dstack.probes.node.asyncio.coroutine_samples import LoopState, waits_of
from dstack.probes.node.asyncio.event_loops import has_tasks, may_have_loops
from dstack.probes.node.blocked_calls.blocked_call import BlockedCalls
from dstack.probes.node.blocked_calls.unproven import REF_CALLS, unproven_call, unread
from dstack.probes.node.cpython.frames import Step
from dstack.probes.node.cpython.interpreter import Interpreter
from dstack.probes.node.cpython.memory import ProcessMemory, Unreadable, open_memory
from dstack.probes.node.cpython.process import Known, MemoryThread, PythonProcess
from dstack.probes.node.cpython.values import shown_locals
from dstack.probes.node.procfs import proc
from dstack.probes.node.program_labels import program_labels
from dstack.probes.node.ray.compiled_graphs import stages_of
from dstack.probes.node.ray.concurrency_groups import concurrency_groups, runs_methods
from dstack.probes.node.ray.ids import actor_of_task
from dstack.probes.node.ray.thread_tasks import read_tasks
from dstack.probes.node.reading import Problem, ProcessReading, Request, ThreadReading
from dstack.probes.node.stability import marks_of, marks_off_cpu, read_off_cpu, unchanged
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.stacks.roles import role_of
from dstack.probes.node.threads import is_event_loop
from dstack.probes.node.waits.reachable_objects import what_reaches
from dstack.probes.node.waits.reached import COROUTINE, THREAD, Reached
from dstack.probes.node.waits.shared_objects import NOTHING, WaitsOn
from dstack.probes.node.wire import CallData

ATTEMPTS = 5
"""The most further readings of a thread that ran."""
REST_S = 0.001
"""The pause before the third further reading of a thread, for it to come to rest; before later ones a multiple."""
ALL_ATTEMPTS_S = 0.5
"""The time for all further readings of threads of one process."""
MAX_KNOWN_PAGES = 1 << 14


@dataclass
class KnownProcess:
    """What earlier samples have learned of a process: its interpreter, the files it has mapped, its code objects."""

    birth: proc.Birth
    files: Sequence[proc.Mapping]
    interpreter: Interpreter
    python: Known


@dataclass(frozen=True)
class _ThreadState:
    """One thread in one reading; ``task_on_loop`` is the Ray task that its event loop runs.

    ``waits_on`` are the objects that its call waits on, which others in the process may reach.
    """

    thread: MemoryThread
    steps: Sequence[Step]
    call: CallData | None = None
    task_id: str | None = None
    task_on_loop: str | None = None
    locals: Sequence[Mapping[str, str]] = ()
    waits_on: WaitsOn = NOTHING
    sleeps: bool = False

    def agrees_with(self, other: _ThreadState) -> bool:
        """Whether both show the thread in the same calls; its innermost frame may be at another instruction."""
        mine, others = self.steps, other.steps
        return [step[:2] for step in mine[:1]] == [step[:2] for step in others[:1]] and mine[1:] == others[1:]


class MemoryReader:
    """One reading of one process. Raises ``OSError`` or :class:`Unreadable` where nothing can be read."""

    def __init__(self, request: Request, known: KnownProcess, origins: Origins) -> None:
        self._request = request
        self._known = known
        self._origins = origins
        self._unreadable: dict[int, str] = {}
        self._has_tasks = False
        self._loops: LoopState | None = None
        self._reached = Reached()

    def read(self) -> ProcessReading:
        """Everything: first all at once, then again those threads that ran meanwhile.

        Where a thread begins or ends just then, the list of threads leads nowhere, and all is read again.
        """
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(Unreadable):
                return self._read()
        return self._read()

    def _read(self) -> ProcessReading:
        before = marks_off_cpu(self._request.pid, self._known.python.os_thread_ids)
        groups: dict[str, str] | None = None
        with self._process(before) as process:
            calls = self._calls(process)
            states = self._read_all(process, calls)
            stages = stages_of(process.objects, process.threads)
            still = unchanged(before, marks_of(self._request.pid, before)) - process.broken
            still_with_loops = still
            memberships, labels = calls.group_calls.groups.memberships(), self._labels(process)
            if not self._request.is_child:
                groups = self._read_groups(process)
                still_with_loops = still & self._read_loops(process, calls, before, still)
            self._reached = self._search(process, calls, states)
            self._known.python.os_thread_ids = [one.os_thread_id for one in process.threads if one.os_thread_id]
            self._keep_pages(process)
            known_states = process.frames.threads
        deadline = min(self._request.deadline, time.monotonic() + ALL_ATTEMPTS_S)
        threads = []
        for state in states:
            tid = state.thread.os_thread_id
            if tid in still and not (self._is_on_loop(state) and tid not in still_with_loops):
                threads.append(self._reading(state, is_still=True))
            elif reading := self._read_again(state, known_states, deadline, tid in still):
                threads.append(reading)
        return ProcessReading(
            threads=threads,
            has_tasks=self._has_tasks,
            loops=self._loops,
            groups=groups,
            memberships=memberships,
            labels=labels,
            graph_stages=stages,
            problems=list(self._problems(threads)),
        )

    @contextlib.contextmanager
    def _process(self, marks: Mapping[int, str], states: Mapping[int, int] | None = None) -> Iterator[PythonProcess]:
        """The process in a new reading of its memory; ``states`` are the addresses of its thread states, if known."""
        with open_memory(self._request.pid, keeps_pages=True) as memory:
            known = self._known.python if states is None else replace(self._known.python, pages=())
            yield PythonProcess(memory, self._known.interpreter, known, marks, states)

    def _keep_pages(self, process: PythonProcess) -> None:
        """Have the next reading begin with the pages of this one."""
        self._known.python.pages = list(process.memory.pages)[:MAX_KNOWN_PAGES]

    # All threads

    def _read_all(self, process: PythonProcess, calls: BlockedCalls) -> list[_ThreadState]:
        tasks = self._tasks(process.memory, process.threads)
        self._has_tasks = tasks is not None
        found = [self._state(process, calls, thread, process.steps(thread), tasks) for thread in process.threads]
        self._unreadable = calls.unreadable
        return found

    def _state(
        self,
        process: PythonProcess,
        calls: BlockedCalls,
        thread: MemoryThread,
        steps: Sequence[Step],
        tasks: Mapping[int, str | None] | None,
    ) -> _ThreadState:
        task_id = (tasks or {}).get(thread.os_thread_id)
        call = calls.call_of(thread, actor_of_task(task_id))
        return _ThreadState(
            thread=thread,
            steps=steps,
            call=call,
            task_id=task_id,
            locals=self._locals(process, thread),
            waits_on=calls.waits_on(thread, call),
            sleeps=thread.os_thread_id in calls.asleep,
        )

    def _tasks(self, memory: ProcessMemory, threads: Sequence[MemoryThread]) -> dict[int, str | None] | None:
        request = self._request
        return read_tasks(threads, memory, self._known.files, request.thread_context, request.title)

    def _locals(self, process: PythonProcess, thread: MemoryThread) -> Sequence[Mapping[str, str]]:
        if not self._request.options["locals"]:
            return ()
        return [shown_locals(process.objects, frame) for frame in thread.frames]

    def _read_groups(self, process: PythonProcess) -> dict[str, str] | None:
        """The declared groups of an actor that has event loops, or threads for its methods."""
        pool = [thread for thread in process.threads if thread.os_thread_id != self._request.pid]
        if runs_methods(pool) or any(map(is_event_loop, pool)):
            with contextlib.suppress(Unreadable):
                return concurrency_groups(process.modules, process.objects)
        return None

    def _labels(self, process: PythonProcess) -> dict[str, str]:
        """The labels that the program has given it; none where these cannot be read."""
        with contextlib.suppress(Unreadable):
            return program_labels(process)
        return {}

    # Event loops

    def _read_loops(
        self, process: PythonProcess, calls: BlockedCalls, before: Mapping[int, str], still: set[int]
    ) -> set[int]:
        """Read the coroutines; returns the threads that did not run from the beginning until these were read."""
        is_stable = still.issuperset(thread.os_thread_id for thread in process.threads)
        # The frames of a thread that runs may be cut off where a coroutine has just been suspended.
        if not may_have_loops(process) and (is_stable or not has_tasks(process)):
            self._loops = LoopState()
            return set(before)
        self._loops = LoopState.read(lambda: calls.coroutines)
        self._keep_pages(process)
        still = unchanged(before, marks_of(self._request.pid, before))
        if still.issuperset(thread.os_thread_id for thread in process.threads):
            self._loops.prove_all()
        else:
            on_still = [thread.thread_id for thread in process.threads if thread.os_thread_id in still]
            self._loops.prove(on_still, self._read_loops_again)
        return still

    def _calls(self, process: PythonProcess) -> BlockedCalls:
        return BlockedCalls(process, self._origins.is_user, self._request.below)

    def _read_loops_again(self) -> LoopState:
        try:
            with self._process(marks_of(self._request.pid)) as process:
                return LoopState.read(lambda: self._calls(process).coroutines)
        except OSError as error:
            return LoopState(unread=str(error))

    def _is_on_loop(self, state: _ThreadState) -> bool:
        return self._loops is not None and state.thread.thread_id in self._loops.on_threads

    # What reaches the objects that are waited on

    def _search(self, process: PythonProcess, calls: BlockedCalls, states: Sequence[_ThreadState]) -> Reached:
        """Find what reaches the objects that threads and coroutines wait on; reads nothing where none does."""
        if not self._request.options.get("reach", True):
            return Reached()
        coroutines = self._loops.coroutines if self._loops else []
        waits = {(THREAD, one.thread.os_thread_id): one.waits_on for one in states if one.waits_on.objects}
        waits.update({(COROUTINE, address): waits_on for address, waits_on in waits_of(coroutines).items()})
        if not waits:
            return Reached()
        chains = calls.coroutines.chains if coroutines else {}
        frames = {one.address: chains[one.address].frames for one in coroutines if one.address in chains}
        reached = what_reaches(process, waits, frames, self._origins.is_user)
        if self._loops:
            self._loops.reached = reached
        return reached

    # Threads that ran

    def _read_again(
        self, state: _ThreadState, states: Mapping[int, int], deadline: float, was_still: bool
    ) -> ThreadReading | None:
        """The thread at rest, else as two readings agree on it, else torn; None where it has ended."""
        found, agrees = [state], False
        for attempt in range(ATTEMPTS):
            if time.monotonic() > deadline or (agrees and not self._may_wait(found)):
                break
            time.sleep(REST_S * max(0, attempt - 1))
            with contextlib.suppress(OSError, Unreadable):
                is_still, again = self._read_one(state.thread, states)
                if is_still:
                    return self._proven(again)
                agrees = again.agrees_with(found[-1])
                found.append(again)
        return self._unproven(found, agrees, was_still)

    def _read_one(self, thread: MemoryThread, states: Mapping[int, int]) -> tuple[bool, _ThreadState]:
        with self._process({thread.os_thread_id: ""}, states) as process:
            return read_off_cpu(
                process.memory, thread.os_thread_id, lambda: self._state_again(process, thread), _is_in_ref_call
            )

    def _state_again(self, process: PythonProcess, before: MemoryThread) -> _ThreadState:
        thread, steps = process.thread_again(before)
        calls = self._calls(process)
        tasks = self._tasks(process.memory, [thread]) if self._has_tasks else None
        on_loop = calls.coroutines.tasks_on_loops.get(thread.thread_id) if is_event_loop(thread) else None
        return replace(self._state(process, calls, thread, steps, tasks), task_on_loop=on_loop)

    def _proven(self, state: _ThreadState) -> ThreadReading:
        self._unreadable.pop(state.thread.os_thread_id, None)
        if self._loops and is_event_loop(state.thread):
            self._loops.on_threads[state.thread.thread_id] = state.task_on_loop
        return self._reading(state, is_still=True)

    def _unproven(self, found: Sequence[_ThreadState], agrees: bool, was_still: bool) -> ThreadReading | None:
        state = found[-1]
        thread = state.thread
        if self._loops:
            self._loops.on_threads.pop(thread.thread_id, None)
        if was_still:
            return self._reading(found[0], is_still=True)
        if in_channel := self._in_channel(found):
            return in_channel
        letter = proc.thread_state(self._request.pid, thread.os_thread_id) if thread.os_thread_id else "?"
        if not letter:
            return None
        running = replace(thread, is_running=letter == "R")
        call = unproven_call([(one.thread, one.call) for one in found])
        return replace(self._reading(replace(state, thread=running, call=call)), is_torn=not agrees)

    def _in_channel(self, found: Sequence[_ThreadState]) -> ThreadReading | None:
        """The thread in a channel, if all readings that show it in any show the same wait; one alone proves nothing."""
        several = [one for one in found if one.call is not None and "channel" in one.call]
        if not several or any(one.call != several[0].call for one in several):
            return None
        state, is_proven = several[-1], len(several) > 1
        return self._reading(state if is_proven else replace(state, call=unread(state.call)), is_still=is_proven)

    def _may_wait(self, found: Sequence[_ThreadState]) -> bool:
        if [one.call is not None and "channel" in one.call for one in found].count(True) == 1:
            return True
        return all(state.call is not None and state.call["kind"] in REF_CALLS for state in found)

    # Results

    def _reading(self, state: _ThreadState, *, is_still: bool = False) -> ThreadReading:
        request = self._request
        role = role_of(state.thread, state.task_id, pid=request.pid, is_driver=request.is_driver, origins=self._origins)
        call = state.call
        if call and state.waits_on.objects:
            call = {**call, **self._reached.of((THREAD, state.thread.os_thread_id), state.waits_on)}
        return ThreadReading(
            thread=state.thread,
            role=role,
            call=call,
            is_still=is_still,
            sleeps=is_still and state.sleeps,
            task_id=state.task_id,
            locals=state.locals,
        )

    def _problems(self, threads: Sequence[ThreadReading]) -> Iterator[Problem]:
        """One problem for all blocked threads of the application whose wait could not be read."""
        if self._loops and self._loops.unread:
            yield Problem("memory", f"its coroutines could not be read: {self._loops.unread}", "unreadable")
            return
        asleep = [one.thread.os_thread_id for one in threads if one.is_still and one.role != "ray"]
        reasons = [self._unreadable[tid] for tid in asleep if tid in self._unreadable]
        if reasons and not self._request.is_child:
            yield Problem("memory", f"the waits of some of its threads could not be read: {reasons[0]}", "unreadable")


def _is_in_ref_call(state: _ThreadState) -> bool:
    """Whether it is in a call of Ray, which is read from memory alone, without the kernel's system call."""
    return state.call is not None and state.call["kind"] in REF_CALLS
