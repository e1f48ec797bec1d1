"""Reads a process from its memory: the frames of its threads, what each of them waits for, and its coroutines.

All threads are read together. A reading of a thread is consistent if the thread did not run meanwhile. A thread that
ran is read again on its own, until it does not run during a reading, or until two readings of its frames agree.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dstack.call_sites import kind_of
from dstack.libraries.compiled_graphs.reading import stages_of
from dstack.libraries.torch.backends import Backend, TorchLibraries
from dstack.libraries.torch.ledgers import Ledgers
from dstack.libraries.vllm.reading import queue_ends
from dstack.observed.calls import REF_CALLS, Call, ChannelCall, GroupCall, KernelObjects, QueueCall, Timer
from dstack.observed.processes import LibraryState, Span
from dstack.probes.node.asyncio.event_loops import has_tasks, may_have_loops
from dstack.probes.node.asyncio.suspended_coroutines import LoopState, objects_of, waits_of
from dstack.probes.node.asyncio.timers import Callbacks, timer_of_thread
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory, open_memory
from dstack.probes.node.cpython.memory_frames import MemoryFrame, Step
from dstack.probes.node.cpython.python_process import Interpreter, KnownPython, MemoryThread, PythonProcess
from dstack.probes.node.cpython.values import shown_locals
from dstack.probes.node.group_calls import ProcessGroups
from dstack.probes.node.kept_reading import KeptReading, can_reuse
from dstack.probes.node.library_states import MAX_STATES, library_loops
from dstack.probes.node.named_values import concurrency_groups, program_labels, runs_methods, texts_at_get_actor
from dstack.probes.node.other_languages import Language
from dstack.probes.node.procfs import proc
from dstack.probes.node.ray_memory import ThreadContext, actor_of_task, read_tasks
from dstack.probes.node.spans import Spans, clock_ahead_s
from dstack.probes.node.stability import marks_of, marks_off_cpu, read_off_cpu, unchanged, unproven_call, unread
from dstack.probes.node.stacks.origins import Origins, role_of
from dstack.probes.node.target_process import Problem, ProcessReading, ReadRequest, ThreadReading
from dstack.probes.node.thread_calls import BlockedCalls
from dstack.probes.node.thread_stacks import ASYNCIO, AnyThread, PythonThread, is_event_loop
from dstack.probes.node.waits.executors import ended_processes
from dstack.probes.node.waits.reachable_objects import COROUTINE, NOTHING, THREAD, Reached, Root, WaitsOn, what_reaches

ATTEMPTS, FEW_ATTEMPTS = 5, 2
"""The most further readings of a thread that ran, and in a round of a profile, which proves nothing."""
PAUSE_S = 0.001
"""The pause before the third further reading of a thread; before later ones a multiple."""
ALL_ATTEMPTS_S = 0.5
"""The time for all further readings of threads of one process."""
MAX_KNOWN_PAGES = 1 << 14
MAX_CANCELLED = 1_000
"""The most asyncio tasks of which code that cancels is searched for references to them."""


@dataclass
class KnownProcess:
    """What earlier samples have learned of a process: its interpreter, the files it has mapped, its code objects.

    ``language`` is another language than Python, which is then not read from memory. ``kept`` is the last reading, if
    the next one may reuse it. ``torch`` are the node's libraries of torch, and ``backends`` those of the process.
    """

    birth: proc.Birth
    files: Sequence[proc.Mapping]
    interpreter: Interpreter
    python: KnownPython
    thread_context: ThreadContext | None
    torch: TorchLibraries
    backends: Sequence[Backend] = ()
    language: Language | None = None
    kept: KeptReading | None = None


@dataclass(frozen=True)
class _ThreadState:
    """One thread in one reading; ``task_on_loop`` is the Ray task that its event loop runs.

    ``waits_on`` are the objects that its call waits on, which others in the process may reach.
    """

    thread: MemoryThread
    steps: Sequence[Step]
    call: Call | None = None
    task_id: str | None = None
    task_on_loop: str | None = None
    locals: Sequence[Mapping[str, str]] = ()
    waits_on: WaitsOn = NOTHING
    sleeps: bool = False
    sleep_left_s: float | None = None
    timer: Timer | None = None
    spans: tuple[Span, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)

    def agrees_with(self, other: _ThreadState) -> bool:
        """Whether both show the thread in the same calls; its innermost frame may be at another instruction."""
        mine, others = self.steps, other.steps
        return [step[:2] for step in mine[:1]] == [step[:2] for step in others[:1]] and mine[1:] == others[1:]


class MemoryReader:
    """One reading of one process. Raises ``OSError`` or :class:`UnreadableMemory` where nothing can be read."""

    def __init__(self, request: ReadRequest, known: KnownProcess, origins: Origins) -> None:
        self._request = request
        self._known = known
        self._learned = known.python
        self._origins = origins
        self._unreadable: dict[int, str] = {}
        self._has_tasks = False
        self._marks: Mapping[int, str] = {}
        self._loops: LoopState | None = None
        self._reached = Reached()
        self._clock_ahead_s = clock_ahead_s()

    def read(self) -> ProcessReading:
        """Everything: first all at once, then again those threads that ran meanwhile.

        Where a thread begins or ends just then, the list of threads leads nowhere, and all is read again. If the
        request allows it, only those threads are read that ran since the last such reading.
        """
        with contextlib.suppress(UnreadableMemory):
            if reading := self._reused():
                return reading
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(UnreadableMemory):
                return self._read()
        return self._read()

    def _read(self) -> ProcessReading:
        began = time.monotonic()
        before = self._marks = marks_off_cpu(self._request.pid, self._known.python.os_thread_ids)
        self._learned = self._known.python.copy()
        groups: dict[str, str] | None = None
        with self._process(before) as process:
            calls = self._calls(process)
            spans = Spans(process, self._clock_ahead_s)
            states = self._read_all(process, calls, spans)
            finished = spans.finished(process.threads) if self._request.options.get("finished_spans") else ()
            stages, ends = stages_of(process.objects, process.threads), queue_ends(process)
            stable = unchanged(before, marks_of(self._request.pid, before)) - process.broken
            memberships, labels = calls.group_calls.groups.memberships(), self._labels(process)
            ledgers = self._ledgers(calls.group_calls.groups)
            has_ended = self._searches and proc.has_ended_children(self._request.pid)
            ended = ended_processes(process, self._request.pid) if has_ended else []
            if not self._request.is_child:
                groups = self._read_groups(process)
            stable_with_loops = stable & self._read_loops(process, calls, before, stable)
            libraries = self._library_states(process, calls)
            self._reached = self._search(process, calls, states)
            self._read_ended(process, calls, states)
            self._keep_learned(process.threads, before)
            self._known.python.os_thread_ids = [one.os_thread_id for one in process.threads if one.os_thread_id]
            self._keep_pages(process)
            known_states = process.frames.threads
        deadline = min(self._request.deadline, time.monotonic() + ALL_ATTEMPTS_S)
        threads = []
        for state in states:
            tid = state.thread.os_thread_id
            if tid in stable and not (self._is_on_loop(state) and tid not in stable_with_loops):
                threads.append(self._reading(state, is_stable=True))
            elif again := self._read_again(state, known_states, deadline, tid in stable):
                threads.append(again)
        reading = ProcessReading(
            threads=threads,
            has_tasks=self._has_tasks,
            loops=self._loops,
            groups=groups,
            memberships=memberships,
            ledgers=ledgers,
            labels=labels,
            graph_stages=stages,
            queue_ends=ends,
            ended_children=ended,
            finished_spans=finished,
            library_states=libraries,
            problems=list(self._problems(threads)),
        )
        if can_reuse(self._request.options):
            with_locals = self._request.options["locals"]
            self._known.kept = KeptReading.of(
                reading,
                before,
                known_states,
                self._unreadable,
                {one.thread.thread_id: one.steps for one in states},
                with_locals=with_locals,
                began=began,
            )
        return reading

    def _reused(self) -> ProcessReading | None:
        """The last reading, with the threads that ran since then read again; None if all must be read."""
        kept, options = self._known.kept, self._request.options
        if kept is None or not can_reuse(options) or not kept.is_for(options, time.monotonic()):
            return None
        before = self._marks = marks_off_cpu(self._request.pid, kept.marks)
        ran = kept.ran(before)
        if ran is None:
            return None
        self._has_tasks, self._loops, self._unreadable = kept.reading.has_tasks, kept.reading.loops, {**kept.unreadable}
        with self._process(before, kept.states, kept.pages) as process:
            if process.frames.threads != kept.states:
                return None
            chains = process.frames.chains(kept.idle(ran))
            idle = {thread_id for thread_id, chain in chains.items() if chain.steps == kept.steps[thread_id]}
            to_read = kept.to_read([one for one in ran if one.thread.thread_id not in idle])
            states = [self._state_again(process, _without_frames(one.thread)) for one in to_read]
            pages = list(process.memory.pages)
        if not states:
            self._known.kept = kept.with_marks(before)
            return kept.reading
        if any(ASYNCIO in frame.file for state in states for frame in state.thread.frames):
            return None  # it may have begun to run an event loop
        again = self._read_stable(states, kept.states, before)
        steps = {one.thread.thread_id: one.steps for one in states}
        self._known.kept = kept = kept.with_threads(again, before, pages, steps)
        return replace(kept.reading, problems=list(self._problems(kept.reading.threads)))

    def _read_stable(
        self, states: Sequence[_ThreadState], addresses: Mapping[int, int], before: Mapping[int, str]
    ) -> dict[int, ThreadReading | None]:
        """The readings of these threads by Python's id, after further ones of those that ran; None for ended ones."""
        deadline = min(self._request.deadline, time.monotonic() + ALL_ATTEMPTS_S)
        stable = unchanged(before, marks_of(self._request.pid, before))
        return {
            state.thread.thread_id: self._proven(state)
            if state.thread.os_thread_id in stable
            else self._read_again(state, addresses, deadline)
            for state in states
        }

    @contextlib.contextmanager
    def _process(
        self, marks: Mapping[int, str], states: Mapping[int, int] | None = None, pages: Collection[int] = ()
    ) -> Iterator[PythonProcess]:
        """The process in a new reading of its memory; ``states`` are the addresses of its thread states, if known.

        ``pages`` are read first; without ``states`` those of the last reading of all threads.
        """
        with open_memory(self._request.pid, keeps_pages=True) as memory:
            learned = replace(self._learned, pages=self._known.python.pages if states is None else pages)
            yield PythonProcess(memory, self._known.interpreter, learned, marks, states)

    def _keep_learned(self, threads: Sequence[MemoryThread], before: Mapping[int, str]) -> None:
        """Keep what this reading has learned for the next ones; it is certain if no thread ran Python meanwhile."""
        known, learned = self._known.python, self._learned
        if learned == known:
            return
        stable = unchanged(before, marks_of(self._request.pid, before))
        all_stable = bool(threads) and stable.issuperset(thread.os_thread_id for thread in threads)
        known.keep(learned, is_certain=all_stable)

    def _keep_pages(self, process: PythonProcess) -> None:
        """Have the next reading begin with the pages of this one."""
        self._known.python.pages = list(process.memory.pages)[:MAX_KNOWN_PAGES]

    # All threads

    def _read_all(self, process: PythonProcess, calls: BlockedCalls, spans: Spans) -> list[_ThreadState]:
        tasks = self._tasks(process.memory, process.threads)
        self._has_tasks = tasks is not None
        found = [self._state(process, calls, thread, process.steps(thread), tasks, spans) for thread in process.threads]
        self._unreadable = calls.unreadable
        return found

    def _state(
        self,
        process: PythonProcess,
        calls: BlockedCalls,
        thread: MemoryThread,
        steps: Sequence[Step],
        tasks: Mapping[int, str | None] | None,
        spans: Spans,
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
            sleep_left_s=calls.asleep.get(thread.os_thread_id),
            timer=timer_of_thread(process, thread.frames),
            spans=spans.of_thread(thread),
            texts=self._texts(process, thread) if thread.os_thread_id in calls.asleep else {},
        )

    def _texts(self, process: PythonProcess, thread: MemoryThread) -> dict[str, str]:
        own = (frame for frame in thread.frames if self._origins.is_user(frame))
        return texts_at_get_actor(process.objects, own)

    def _tasks(self, memory: ProcessMemory, threads: Sequence[MemoryThread]) -> dict[int, str | None] | None:
        request = self._request
        return read_tasks(threads, memory, self._known.files, self._known.thread_context, request.title)

    def _locals(self, process: PythonProcess, thread: MemoryThread) -> Sequence[Mapping[str, str]]:
        if not self._request.options["locals"]:
            return ()
        return [shown_locals(process.objects, frame) for frame in thread.frames]

    def _ledgers(self, groups: ProcessGroups) -> Ledgers:
        """The ledgers of torch's groups; its libraries are mapped long before a process has a group.

        A round of a profile has no use for them.
        """
        if can_reuse(self._request.options) or not groups.torch.by_address:
            return Ledgers()
        known = self._known
        known.backends = known.backends or known.torch.backends(groups.torch.memory)
        return groups.ledgers(known.backends)

    def _read_groups(self, process: PythonProcess) -> dict[str, str] | None:
        """The declared groups of an actor that has event loops, or threads for its methods."""
        pool = [thread for thread in process.threads if thread.os_thread_id != self._request.pid]
        if runs_methods(pool) or any(map(is_event_loop, pool)):
            with contextlib.suppress(UnreadableMemory):
                return concurrency_groups(process)
        return None

    def _library_states(self, process: PythonProcess, calls: BlockedCalls) -> tuple[LibraryState, ...]:
        """The states of libraries whose loops run in threads and coroutines, each read while its thread did not run."""
        if can_reuse(self._request.options):
            return ()
        stacks = [(thread.os_thread_id, thread.frames) for thread in process.threads]
        if self._loops is not None and self._loops.coroutines:
            os_ids = {thread.thread_id: thread.os_thread_id for thread in process.threads}
            chains = calls.coroutines.chains.by_task
            known = (one for one in self._loops.coroutines if one.address in chains and one.thread_id in os_ids)
            stacks += [(os_ids[one.thread_id], chains[one.address].frames) for one in known if one.thread_id]
        loops = library_loops(stacks)
        found: list[LibraryState] = []
        for _ in range(ATTEMPTS if loops else 0):
            with contextlib.suppress(OSError), self._process({}, process.frames.threads) as again:
                readings = [(loop, loop.read(again.objects)) for loop in loops]
            found += [state for _, states in readings for state in states or ()]
            loops = [loop for loop, states in readings if states is None]
        return tuple(found[:MAX_STATES])

    def _labels(self, process: PythonProcess) -> dict[str, str]:
        """The labels that the program has given it; none where these cannot be read."""
        with contextlib.suppress(UnreadableMemory):
            return program_labels(process)
        return {}

    # Event loops

    def _read_loops(
        self, process: PythonProcess, calls: BlockedCalls, before: Mapping[int, str], stable: set[int]
    ) -> set[int]:
        """Read the coroutines; returns the threads that did not run from the beginning until these were read."""
        is_stable = stable.issuperset(thread.os_thread_id for thread in process.threads)
        # The frames of a thread that runs may be cut off where a coroutine has just been suspended.
        if not may_have_loops(process) and (is_stable or not has_tasks(process)):
            self._loops = LoopState()
            return set(before)
        self._loops = LoopState.read(lambda: calls.coroutines)
        self._keep_pages(process)
        stable = unchanged(before, marks_of(self._request.pid, before))
        if stable.issuperset(thread.os_thread_id for thread in process.threads):
            self._loops.prove_all()
        else:
            on_stable = [thread.thread_id for thread in process.threads if thread.os_thread_id in stable]
            self._loops.prove(on_stable, self._read_loops_again)
        return stable

    def _calls(self, process: PythonProcess) -> BlockedCalls:
        return BlockedCalls(process, self._origins.is_user, self._request.around)

    def _read_loops_again(self) -> LoopState:
        try:
            with self._process(marks_of(self._request.pid)) as process:
                return LoopState.read(lambda: self._calls(process).coroutines)
        except OSError as error:
            return LoopState(unread=str(error))

    def _is_on_loop(self, state: _ThreadState) -> bool:
        return self._loops is not None and state.thread.thread_id in self._loops.on_threads

    # What reaches the objects that are waited on

    @property
    def _searches(self) -> bool:
        """Whether to read what only the proof needs, and not the first of two samples."""
        return self._request.options.get("reach", True)

    def _search(self, process: PythonProcess, calls: BlockedCalls, states: Sequence[_ThreadState]) -> Reached:
        """Find references to the objects that threads and coroutines wait on; reads nothing without such objects."""
        if not self._searches:
            return Reached()
        coroutines = self._loops.coroutines if self._loops else []
        waits = {(THREAD, one.thread.os_thread_id): one.waits_on for one in states if one.waits_on.objects}
        waits.update({(COROUTINE, address): waits_on for address, waits_on in waits_of(coroutines).items()})
        chains = calls.coroutines.chains.by_task if coroutines else {}
        frames = {one.address: chains[one.address].frames for one in coroutines if one.address in chains}
        cancelling = self._cancelling(process, states, frames) if coroutines else set()
        tasks = [one.address for one in coroutines if one.call] if cancelling else []
        reached = Reached()
        if waits or tasks:
            timers = calls.coroutines.timers_by_thread() if coroutines else {}
            reached = what_reaches(process, waits, frames, self._origins.is_user, tasks[:MAX_CANCELLED], timers)
        if self._loops:
            self._loops.reached = reached
            self._loops.timers = calls.coroutines.stopping_timers() if coroutines else ()
            self._loops.coroutines = [
                calls.coroutines.with_interruptions(one, cancelling.intersection(reached.roots_of(one.address)))
                for one in coroutines
            ]
        return reached

    def _cancelling(
        self, process: PythonProcess, states: Sequence[_ThreadState], coroutines: Mapping[int, Sequence[MemoryFrame]]
    ) -> set[Root]:
        """The threads and coroutines whose own code, or whose timer, uses a name that cancels something."""
        callbacks = Callbacks(process)
        all_frames: dict[Root, Sequence[MemoryFrame]] = {
            (THREAD, o.thread.os_thread_id): o.thread.frames for o in states
        }
        all_frames.update({(COROUTINE, address): frames for address, frames in coroutines.items()})
        own = {root: filter(self._origins.is_user, frames) for root, frames in all_frames.items()}
        by_timer = {(THREAD, one.thread.os_thread_id) for one in states if one.timer and one.timer.stops}
        return by_timer | {root for root, frames in own.items() if any(map(callbacks.cancels, frames))}

    def _read_ended(self, process: PythonProcess, calls: BlockedCalls, states: Sequence[_ThreadState]) -> None:
        """Read the asyncio tasks that ended, if something in the process waits for an object of it."""
        if self._loops is None or self._loops.unread or not self._searches:
            return
        waits = [(one.call, one.waits_on) for one in states]
        waits += [(one.call, one.waits_on) for one in self._loops.coroutines]
        if awaited := objects_of(waits):
            self._loops.awaited = awaited
            self._loops.ended = calls.coroutines.ended(awaited)

    # Threads that ran

    def _read_again(
        self, state: _ThreadState, states: Mapping[int, int], deadline: float, was_stable: bool = False
    ) -> ThreadReading | None:
        """A stable reading, else one that two readings agree on, else a torn one; None if the thread has ended."""
        found, agrees = [state], False
        attempts = FEW_ATTEMPTS if can_reuse(self._request.options) else ATTEMPTS
        for attempt in range(attempts):
            if time.monotonic() > deadline or (agrees and not self._may_wait(found)):
                break
            time.sleep(PAUSE_S * max(0, attempt - 1))
            with contextlib.suppress(OSError, UnreadableMemory):
                is_stable, again = self._read_one(state.thread, states)
                if is_stable:
                    return self._proven(again)
                agrees = again.agrees_with(found[-1])
                found.append(again)
        return self._unproven(found, agrees, was_stable)

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
        spans = Spans(process, self._clock_ahead_s)
        return replace(self._state(process, calls, thread, steps, tasks, spans), task_on_loop=on_loop)

    def _proven(self, state: _ThreadState) -> ThreadReading:
        self._unreadable.pop(state.thread.os_thread_id, None)
        if self._loops and is_event_loop(state.thread):
            self._loops.on_threads[state.thread.thread_id] = state.task_on_loop
        return self._reading(state, is_stable=True)

    def _unproven(self, found: Sequence[_ThreadState], agrees: bool, was_stable: bool) -> ThreadReading | None:
        state = found[-1]
        thread = state.thread
        if self._loops:
            self._loops.on_threads.pop(thread.thread_id, None)
        if was_stable:
            return self._reading(found[0], is_stable=True)
        if polling := self._polling(found):
            return polling
        letter = proc.thread_state(self._request.pid, thread.os_thread_id) if thread.os_thread_id else "?"
        if not letter:
            return None
        running = replace(thread, is_running=letter == "R")
        call = unproven_call([(one.thread, one.call) for one in found])
        spans = tuple(one for one in state.spans if len(found) > 1 and one in found[-2].spans)
        return replace(self._reading(replace(state, thread=running, call=call, spans=spans)), is_torn=not agrees)

    def _polling(self, found: Sequence[_ThreadState]) -> ThreadReading | None:
        """The wait in which a library polls, if all readings with one show the same; a single one proves nothing."""
        several = [one for one in found if _is_polling(one)]
        first = several[0].call if several else None
        if first is None or not all(one.call and one.call.is_same_as(first) for one in several):
            return None
        state, is_proven = several[-1], len(several) > 1
        return self._reading(state if is_proven else replace(state, call=unread(state.call)), is_stable=is_proven)

    def _may_wait(self, found: Sequence[_ThreadState]) -> bool:
        if [_is_polling(state) for state in found].count(True) == 1:
            return True
        return all(map(_is_in_ref_call, found))

    # Results

    def _reading(self, state: _ThreadState, *, is_stable: bool = False) -> ThreadReading:
        request = self._request
        role = role_of(state.thread, state.task_id, pid=request.pid, is_driver=request.is_driver, origins=self._origins)
        call = state.call
        if call:
            call = self._reached.with_reach((THREAD, state.thread.os_thread_id), call, state.waits_on)
        return ThreadReading(
            thread=state.thread,
            role=role,
            call=call,
            is_stable=is_stable,
            sleeps=is_stable and state.sleeps,
            sleep_left_s=state.sleep_left_s if is_stable else None,
            slices=proc.times_scheduled(self._marks.get(state.thread.os_thread_id, "")),
            timer=state.timer,
            written_bytes=proc.written_bytes(request.pid, state.thread.os_thread_id) if _wakes(state) else None,
            task_id=state.task_id,
            locals=state.locals,
            spans=state.spans,
            texts=state.texts if is_stable else {},
        )

    def _problems(self, threads: Sequence[ThreadReading]) -> Iterator[Problem]:
        """One problem for all blocked threads of the application whose wait could not be read."""
        if self._loops and self._loops.unread and not self._request.is_child:
            yield Problem("memory", f"its coroutines could not be read: {self._loops.unread}", "unreadable")
            return
        asleep = [one.thread.os_thread_id for one in threads if one.is_stable and one.role != "ray"]
        reasons = [self._unreadable[tid] for tid in asleep if tid in self._unreadable]
        if reasons and not self._request.is_child:
            yield Problem("memory", f"the waits of some of its threads could not be read: {reasons[0]}", "unreadable")


def _without_frames(thread: AnyThread) -> MemoryThread:
    """A thread whose frames are to be read."""
    return PythonThread(thread.thread_id, thread.os_thread_id, thread.name, ())


def _wakes(state: _ThreadState) -> bool:
    """Whether it will wake by itself, by a timer."""
    return state.sleeps or (state.call is not None and state.call.timeout_s is not None)


def _is_in_ref_call(state: _ThreadState) -> bool:
    """Whether it is in a call of Ray, which is read from memory alone, without the kernel's system call."""
    return state.call is not None and kind_of(state.call) in REF_CALLS


def _is_polling(state: _ThreadState) -> bool:
    """Whether a library polls in it: at an end of a channel or queue, for other ranks, or for a store."""
    match state.call.need if state.call else None:
        case GroupCall(mark=mark):
            return not mark
        case KernelObjects(store=store):
            return store is not None
        case need:
            return isinstance(need, (ChannelCall, QueueCall))
