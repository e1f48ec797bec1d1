"""One look at one process: its figures, its threads, what these wait for, and what failed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from typing import Any

import psutil

from dstack.probes.node.asyncio.coroutine_samples import LoopState
from dstack.probes.node.asyncio.event_loops import is_event_loop, may_have_loops
from dstack.probes.node.cpython.interpreter import Interpreter
from dstack.probes.node.cpython.layout import Layout
from dstack.probes.node.cpython.memory import ProcessMemory, Unreadable, open_memory
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.children import Families, is_helper, is_python
from dstack.probes.node.procfs.permissions import DumpFailed, why_refused
from dstack.probes.node.procfs.rest import while_at_rest
from dstack.probes.node.procfs.restless import KINDS, Restless
from dstack.probes.node.procfs.stability import Activity, activity, unmoved
from dstack.probes.node.procfs.worker_pid import PortOwners, require_worker
from dstack.probes.node.pyspy.parser import RawThread
from dstack.probes.node.pyspy.runner import PySpy, SudoRefused
from dstack.probes.node.ray.concurrency_groups import runs_methods
from dstack.probes.node.ray.thread_tasks import name_threads, read_tasks
from dstack.probes.node.stacks.redaction import masked_locals
from dstack.probes.node.stacks.table import Origins, StackTable, is_made_by_python, role_of
from dstack.probes.node.waits.blocked_call import Reader
from dstack.probes.node.waits.frames_only import shallow_calls

ATTEMPTS = 3
DUMP_TIMEOUT_S = 5.0
RETRY_S = 0.005

Plain = dict[str, Any]
Told = tuple[Plain | None, str | None]
"""What a thread waits for, and the Ray task that it is in the middle of as an event loop."""


class Look:
    """One look at one process: its figures, its threads, and what failed.

    That of a process which a worker or driver has started has the ``parent_pid`` in its target, and stacks only.
    """

    def __init__(
        self, target: Plain, options: Plain, origins: Origins, layout: Callable[[], Layout], families: Families
    ) -> None:
        self.target = target
        self.pid: int = target["pid"]
        self.options = options
        self.origins = origins
        self.families = families
        self.below = families.below(self.pid)
        self.children: list[Look] = []
        self.left_out = 0
        self.layout = layout
        self.interpreter = Interpreter(target.get("python"), layout)
        self.title = ""
        self.figures: Plain = {}
        self.threads: list[RawThread] = []
        self.calls: dict[int, Plain] = {}
        self.access = "memory"
        self.unread: str | None = None
        self.is_shallow = False
        self.restless: dict[int, Plain] = {}
        self.unreadable: dict[int, str] = {}
        self.still: set[int] = set()
        self.marks: Activity = {}
        self.loops: LoopState | None = None
        self.tasks: dict[int, str | None] | None = None
        self.groups: dict[str, str] | None = None
        self.paused_ms = 0.0
        self.began = time.monotonic()
        self.failures: list[Plain] = []

    def fail(self, stage: str, reason: str, remedy: str | None = None, cause: str = "other") -> None:
        """Records what could not be seen; ``cause`` is one of :data:`dstack.model.Cause`."""
        failure = {"stage": stage, "reason": reason, "cause": cause, "remedy": remedy, "pid": self.pid}
        elapsed_s = round(time.monotonic() - self.began, 2)
        self.failures.append({**failure, "worker_id": self.target["worker_id"], "elapsed_s": elapsed_s})

    def ends(self) -> None:
        """Records that the process is gone, which is why all else failed."""
        self.failures.clear()
        self.fail("process", "the process is gone", cause="ended")

    @property
    def is_gone(self) -> bool:
        """Whether the process ended while it was looked at, or before."""
        return any((failure["stage"], failure["cause"]) == ("process", "ended") for failure in self.failures)

    def find_children(self, limit: int) -> None:
        """Finds the processes of Python below this one, and takes so many for a look."""
        own = [pid for pid, parent in self.below.items() if not is_helper(pid, parent)]
        found = list(filter(is_python, own))
        self.left_out = len(own) - min(len(found), limit)
        for pid in found[:limit]:
            target = {**self.target, "pid": pid, "parent_pid": self.below[pid], "port": 0, "is_driver": True}
            target.pop("python", None)
            self.children.append(Look(target, self.options, self.origins, self.layout, self.families))
        if len(found) > limit:
            reason = f"{len(found) - limit} of its child processes were not looked at: there are too many"
            self.fail("stacks", reason, cause="truncated")

    def identify(self, owners: PortOwners) -> None:
        """Validate that the pid is this worker's. Raises :class:`NotThisWorker`."""
        require_worker(self.pid, self.target["port"], owners)
        process = psutil.Process(self.pid)
        with process.oneshot():
            self.title = process.name()
            times = process.cpu_times()
            self.figures = {
                "pid": self.pid,
                "started_at": process.create_time(),
                "cpu_s": times.user + times.system,
                "rss_bytes": process.memory_info().rss,
                "num_threads": process.num_threads(),
                "state": process.status(),
            }

    def read_stacks(self, tool: PySpy, deadline: float) -> None:
        """Reads without a pause first, which proves itself for threads that did not run meanwhile.

        A process of which another thread moved is then dumped once more with a pause, for stacks that are whole. Where
        py-spy cannot do that, what was read without one stands, as far as it is proven.
        """
        problem: DumpFailed | None = None
        restless = Restless()
        for attempt in range(ATTEMPTS):
            try:
                self._read_unpaused(tool, deadline)
                restless.note(self.threads, self.calls)
                problem = None
            except DumpFailed as error:
                problem = error
                if error.is_refused or isinstance(error, SudoRefused):
                    raise
                continue
            if self._proves_blocked(deadline):
                break
            time.sleep(0.002 * (attempt + 1))
        if self.options["nonblocking"]:
            if problem:
                raise problem
        elif problem or self.options["native"] or any(self._moved(thread) for thread in self.threads):
            try:
                self._read_paused(tool, deadline)
            except DumpFailed as error:
                if problem or not psutil.pid_exists(self.pid):
                    raise
                self.fail("stacks", f"only read without a pause: {error.reason}", error.remedy, error.cause)
        if not self.unread:
            self.restless = restless.calls(self.threads, self.still)
        if self.unread or self.interpreter.refused:
            self.access = tool.access
        if "parent_pid" not in self.target:
            self._read_loops()
            self._report_unreadable()

    def _read_unpaused(self, tool: PySpy, deadline: float) -> None:
        before = activity(self.pid)
        threads = tool.dump(self.pid, blocking=False, native=False, timeout_s=_remaining(deadline))
        calls = self._calls(threads, before.keys())
        self.marks = activity(self.pid)
        self.threads, self.calls, self.still = threads, calls, unmoved(before, self.marks)

    def _proves_blocked(self, deadline: float) -> bool:
        """Whether all threads that wait for somebody are proven to by then.

        Ray wakes who waits for refs every second, which on a busy host is a matter of one run of py-spy; and so does a
        profiler. Of a thread that has moved it takes some 2 ms to see that it is where py-spy saw it and at rest, and
        to read its call again.
        """
        for attempt in range(ATTEMPTS):
            moved = [one for one in self.threads if self._moved(one) and (not attempt or self._may_wait(one))]
            if self.unread or not moved:
                break
            time.sleep(RETRY_S * attempt)
            for thread in moved:
                if time.monotonic() < deadline:
                    self._prove(thread)
        return not any(self._moved(thread) and self._is_blocked(thread) for thread in self.threads)

    def _prove(self, thread: RawThread) -> bool:
        """Whether a thread rests where py-spy saw it, with its call, and of an event loop the task in its hands."""
        with contextlib.suppress(OSError, Unreadable), open_memory(self.pid, keeps_pages=True) as memory:
            found = while_at_rest(memory, thread["os_thread_id"], lambda: self._told(thread, memory), _is_for_refs)
            if found:
                self._believe(thread, *found)
                return True
        return False

    def _told(self, thread: RawThread, memory: ProcessMemory) -> Told:
        """The call and the task on its event loop; :class:`Unreadable` where the thread is elsewhere than it was."""
        reader = self._reader(self.threads, memory)
        if not reader.is_where_it_was(thread):
            raise Unreadable("it has moved")
        task = reader.coroutines.tasks_on_loops.get(thread["thread_id"]) if self.loops else None
        return reader.call_of(thread), task

    def _believe(self, thread: RawThread, mark: str, told: Told) -> None:
        tid, (call, task) = thread["os_thread_id"], told
        self.still.add(tid)
        self.marks[tid] = mark
        self.calls.pop(tid, None)
        if call:
            self.calls[tid] = call
        if self.loops:
            self.loops.on_threads[thread["thread_id"]] = task

    def _read_paused(self, tool: PySpy, deadline: float) -> None:
        """Takes the threads that moved from a dump with a pause, and keeps the proven readings of the others.

        Tried again where it fails: a process may be stopped in a moment in which py-spy cannot find its way (seen once
        in 2,000 dumps of a busy CPython 3.13), or somebody else's profiler may have it just then.
        """
        native = self.options["native"]
        for attempt in range(ATTEMPTS):
            began = time.monotonic()
            try:
                paused = tool.dump(self.pid, blocking=True, native=native, timeout_s=_remaining(deadline))
                break
            except DumpFailed:
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(RETRY_S)
        self.paused_ms = (time.monotonic() - began) * 1000
        proven = {} if native else {t["os_thread_id"]: t for t in self.threads if t["os_thread_id"] in self.still}
        self.threads = [proven.get(thread["os_thread_id"], thread) for thread in paused]
        if self.is_shallow:  # all of it is in the dump itself
            self.calls = shallow_calls(self.threads)

    def _read_loops(self) -> None:
        """Reads the coroutines, in a time of their own: it may be long, and no other thread need stand still for it.

        What a loop is in the middle of goes with its thread's stack only if the thread did not move since.
        """
        if not may_have_loops(self.threads, self.pid):
            self.loops = LoopState()
            with contextlib.suppress(OSError), open_memory(self.pid, keeps_pages=True) as memory:
                self._read_groups(self._reader(self.threads, memory))
            return
        before = activity(self.pid)
        self.loops = self._read_coroutines()
        after = activity(self.pid)
        os_ids = {thread["thread_id"]: thread["os_thread_id"] for thread in self.threads}
        still = unmoved(before, after)
        if still.issuperset(os_ids.values()):
            self.loops.prove_all()
        else:
            self.loops.prove([known for known, tid in os_ids.items() if tid in still], self._read_coroutines)
        moved_since = self.still - unmoved(self.marks, after)
        for thread in self.threads:
            is_in_doubt = thread["thread_id"] in self.loops.on_threads and thread["os_thread_id"] in moved_since
            if is_in_doubt and not self._prove(thread):
                del self.loops.on_threads[thread["thread_id"]]

    def _read_coroutines(self) -> LoopState:
        try:
            with open_memory(self.pid, keeps_pages=True) as memory:
                reader = self._reader(self.threads, memory)
                loops = LoopState.read(lambda: reader.coroutines)
                self._read_groups(reader)
                return loops
        except OSError as error:
            return LoopState(unread=str(error))

    def _read_groups(self, reader: Reader) -> None:
        """Reads the declared groups of an actor that has event loops, or threads for its methods."""
        pool = [thread for thread in self.threads if thread["os_thread_id"] != self.pid]
        if self.groups is None and (runs_methods(pool) or any(map(is_event_loop, pool))):
            self.groups = reader.concurrency_groups()

    def _reader(self, threads: list[RawThread], memory: ProcessMemory) -> Reader:
        return Reader(threads, memory, self.interpreter, lambda frame: self.origins.of(frame) == "user", self.below)

    def _calls(self, threads: list[RawThread], known: Collection[int]) -> dict[int, Plain]:
        calls = {}
        self.unread, self.is_shallow = None, False
        try:
            with open_memory(self.pid, keeps_pages=True) as memory:
                name_threads(threads, memory, known)
                layout = self.target.get("thread_context", self.options["thread_context"])
                self.tasks = read_tasks(threads, memory, layout, self.title)
                reader = self._reader(threads, memory)
                for thread in threads:
                    if call := reader.call_of(thread):
                        calls[thread["os_thread_id"]] = call
                self.unreadable = reader.unreadable
        except PermissionError:
            self.unread, self.is_shallow = str(why_refused(self.pid)), True
            return shallow_calls(threads)
        except (OSError, Unreadable) as error:
            self.unread = str(error)
        return calls

    def _report_unreadable(self) -> None:
        """One failure for the process, or for all its user's threads of which it is not known what they sleep on."""
        unread = self.unread or self.interpreter.refused
        if unread:
            cause = "permission" if self.is_shallow else "unreadable"
            self.fail("memory", f"its memory could not be read: {unread}", cause=cause)
            return
        roles = {thread["os_thread_id"]: self._role(thread) for thread in self.threads}
        reasons = [why for tid, why in self.unreadable.items() if tid in self.still and roles.get(tid) != "ray"]
        if self.loops and self.loops.unread:
            self.fail("memory", f"its coroutines could not be read: {self.loops.unread}", cause="unreadable")
        elif reasons:
            reason = f"what some of its threads wait for could not be read: {reasons[0]}"
            self.fail("memory", reason, cause="unreadable")

    def _moved(self, thread: RawThread) -> bool:
        """Whether a thread of the application ran while it was read; what Ray's own threads do is of no interest."""
        return thread["os_thread_id"] not in self.still and self._role(thread) != "ray"

    def _role(self, thread: RawThread) -> str:
        return "task" if self._runs_task_in_cpp(thread) else self._shown_role(thread)

    def _shown_role(self, thread: RawThread) -> str:
        return role_of(thread, pid=self.pid, is_driver=self.target["is_driver"], origins=self.origins)

    def _runs_task_in_cpp(self, thread: RawThread) -> bool:
        """Whether a thread that shows no task has one: fetching arguments, storing results, yielding an item."""
        has_task = (self.tasks or {}).get(thread["os_thread_id"]) is not None and not self.target["is_driver"]
        return has_task and not is_made_by_python(thread) and self._shown_role(thread) == "ray"

    def _is_blocked(self, thread: RawThread) -> bool:
        """Whether it may wait for somebody in particular; who waits for work or for a while comes and goes."""
        return self._may_wait(thread) and self.calls.get(thread["os_thread_id"], {}).get("kind") != "other"

    def _may_wait(self, thread: RawThread) -> bool:
        return thread["os_thread_id"] in self.calls or self._runs_task_in_cpp(thread)

    def as_process(self, table: StackTable) -> Plain:
        """The process as plain data, its stacks entered into the table."""
        cwd = proc.working_directory(self.pid)
        threads = [self._as_thread(thread, table, cwd) for thread in self.threads]
        paused_ms = round(self.paused_ms, 2)
        read = {
            "tasks_read": self.tasks is not None,
            "coroutines_read": self.loops is not None and self.loops.unread is None,
            "concurrency_groups": self.groups,
        }
        os_ids = {thread["thread_id"]: thread["os_thread_id"] or 0 for thread in self.threads}
        coroutines = self.loops.as_plain(table, cwd, os_ids) if self.loops else []
        children = [child.as_child(table) for child in self.children if child.figures and not child.is_gone]
        own = {
            "access": self.access,
            "paused_ms": paused_ms,
            "threads": threads,
            "coroutines": coroutines,
            "children": children,
        }
        return {**self.figures, **read, **own, "children_left_out": self.left_out}

    def as_child(self, table: StackTable) -> Plain:
        """The process as a child of another."""
        cwd = proc.working_directory(self.pid)
        threads = [self._as_thread(thread, table, cwd) for thread in self.threads]
        parent = {"parent_pid": self.target["parent_pid"], "name": self.title, "paused_ms": round(self.paused_ms, 2)}
        return {**self.figures, **parent, "threads": threads}

    def _as_thread(self, thread: RawThread, table: StackTable, cwd: str) -> Plain:
        tid = thread["os_thread_id"] or 0
        plain: Plain = {
            "os_thread_id": tid,
            "name": thread["thread_name"] or "",
            "stack": table.add(thread["frames"], cwd),
            "role": self._role(thread),
            "on_cpu": bool(thread["active"]) and tid not in self.still,
            "still": tid in self.still,
            "task_id": self._task_on(thread),
        }
        call = self.calls.get(tid) if tid in self.still else self.restless.get(tid)
        if call:
            plain["call"] = self._relocated(call, thread)
        if self.options["locals"]:
            plain["locals"] = masked_locals(thread["frames"])
        return plain

    def _task_on(self, thread: RawThread) -> str | None:
        if is_event_loop(thread):
            return self.loops.on_threads.get(thread["thread_id"]) if self.loops else None
        return (self.tasks or {}).get(thread["os_thread_id"])

    def _relocated(self, call: Plain, thread: RawThread) -> Plain:
        """The call with its frame counted in this stack, which with native frames has others below the Python leaf."""
        native = next((i for i, frame in enumerate(thread["frames"]) if not frame["module"]), 0)
        return {**call, "frame": call["frame"] + native}


def _is_for_refs(told: Told) -> bool:
    """Whether it is in one of Ray's calls, of which all is told by memory, and nothing by the kernel."""
    return told[0] is not None and told[0]["kind"] in KINDS


def _remaining(deadline: float) -> float:
    left = min(DUMP_TIMEOUT_S, deadline - time.monotonic())
    if left <= 0:
        raise DumpFailed("no time was left for it", cause="timeout")
    return left
