"""Reads each process from memory, else through py-spy; exact and native stacks come from both.

Processes in other languages than Python are read by the tools of these.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace

import psutil

from dstack.call_sites import WAITPID
from dstack.libraries.torch.backends import TorchLibraries
from dstack.observed.calls import Call, Children
from dstack.probes.node.cpython.code_objects import KnownPositions
from dstack.probes.node.cpython.debug_offsets import stated_python
from dstack.probes.node.cpython.memory import UnreadableMemory, open_memory
from dstack.probes.node.cpython.python_process import Interpreter, KnownPython, OwnPython
from dstack.probes.node.memory_reader import KnownProcess, MemoryReader
from dstack.probes.node.other_languages import language_of, read_with_tool
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.children import is_python
from dstack.probes.node.procfs.permissions import INSTALL_PYSPY, DumpFailed, why_denied
from dstack.probes.node.pyspy import PySpy, PySpyReader, SudoFailed
from dstack.probes.node.ray_memory import RayLibraries, library_of
from dstack.probes.node.ray_messages import REMEDY
from dstack.probes.node.ray_sources import NO_THREAD_CONTEXT, folder_of, lost_in
from dstack.probes.node.stability import marks_of, marks_off_cpu, unchanged
from dstack.probes.node.stacks.origins import Origins
from dstack.probes.node.system_calls import KernelWaits, remaining_sleep_s
from dstack.probes.node.target_process import Problem, ProcessReading, ReadRequest, TargetProcess, ThreadReading
from dstack.probes.node.thread_stacks import PythonThread

MAX_NATIVE_THREADS = 64
"""The most threads that are read of a process that does not run Python."""
MAX_KNOWN = 2_000
MAX_CODES = 20_000
"""The most processes of which the probe keeps what it has learned."""


class ProcessReader:
    """Reads the processes of one node, and keeps what it has learned of each for the next sample."""

    def __init__(self, tool: PySpy | None) -> None:
        self.tool = tool
        self.origins = Origins()
        self._own = OwnPython()
        self._libraries = RayLibraries()
        self._torch = TorchLibraries()
        self._known: dict[int, KnownProcess] = {}
        self._positions: KnownPositions = {}
        self._sudo_fails = False
        self._lost: dict[tuple[proc.File | None, str], list[Problem]] = {}

    def read(self, process: TargetProcess, request: ReadRequest) -> ProcessReading:
        """The reading of an identified process. Raises :class:`DumpFailed`, or ``psutil.NoSuchProcess`` if it ended."""
        if time.monotonic() > request.deadline:
            raise DumpFailed("no time was left to read it", cause="timeout")
        if language := self.known_process(process).language:
            return read_with_tool(language, request)
        if request.is_child and not is_python(process.pid):
            return _read_native(request)
        reading = self._read_memory(process, request)
        options = request.options
        is_exact = all(one.is_stable or one.role == "ray" for one in reading.threads)
        if options["native"] or (options["pause"] and not is_exact):
            return self._with_exact_stacks(reading, request)
        return reading

    def _read_memory(self, process: TargetProcess, request: ReadRequest) -> ProcessReading:
        """From memory; where that is not possible, from py-spy, with the reason as a problem."""
        known = self.known_process(process)
        unreadable = known.interpreter.unreadable
        if unreadable:
            return self._through_pyspy(request, Problem.of_memory(unreadable, "unreadable"), unreadable)
        try:
            reading = MemoryReader(request, known, self.origins).read()
        except PermissionError:
            return self._through_pyspy(request, Problem.of_memory(why_denied(process.pid), "permission"))
        except (OSError, UnreadableMemory) as error:
            self._known.pop(process.pid, None)  # it may just have begun, and not have mapped all of its files
            self._require_alive(process)
            return self._through_pyspy(request, Problem.of_memory(error, "unreadable"))
        self._require_alive(process)
        return reading

    def known_process(self, process: TargetProcess) -> KnownProcess:
        """What is known of an identified process, which it keeps."""
        assert process.figures is not None
        known = self._known.get(process.pid)
        if known is None or known.birth != process.figures.birth:
            files = proc.mapped_files(process.pid)
            foreign = process.target.get("python") or (None if self._own.is_in(files) else stated_python(process.pid))
            interpreter = Interpreter(foreign, self._own, files)
            language = language_of(files.values())
            python = KnownPython(self._positions)
            if library := library_of(files.values()):
                self.origins.add_ray(os.path.dirname(library.path))
            context = self._libraries.thread_context(process.pid, files)
            known = KnownProcess(
                process.figures.birth,
                list(files.values()),
                interpreter,
                python,
                context,
                torch=self._torch,
                language=language,
            )
            if len(self._known) < MAX_KNOWN:
                self._known[process.pid] = known
        return known

    def lost_pieces(self, process: TargetProcess) -> Sequence[Problem]:
        """What the Ray of a process that was read does not have that dstack needs; each Ray is checked once."""
        known = self._known.get(process.pid)
        library = library_of(known.files) if known else None
        if known is None or library is None:
            return ()
        key = library.file, library.path
        if key not in self._lost:
            folder = folder_of(library, process.pid)
            found = lost_in(folder) if folder else []
            found += [NO_THREAD_CONTEXT] if folder and known.thread_context is None else []
            self._lost[key] = [Problem("Ray", lost.reason, lost.cause, REMEDY) for lost in found]
        return self._lost[key]

    def forget_ended(self) -> None:
        """Forgets the processes that have ended, and the code of those that have made very much of it."""
        self._known = {pid: known for pid, known in self._known.items() if psutil.pid_exists(pid)}
        for known in self._known.values():
            if len(known.python.codes) > MAX_CODES:
                known.python = KnownPython(self._positions)
        if len(self._positions) > MAX_CODES:
            self._positions.clear()

    def _require_alive(self, process: TargetProcess) -> None:
        """Raise unless it is still the same process and runs the same program."""
        now = proc.figures(process.pid)
        before = process.figures
        has_no_memory = (
            now is not None and before is not None and before.birth.stack_start and not now.birth.stack_start
        )
        if now is None or now.state == "Z" or has_no_memory:  # a process that exits has no stack any more
            raise psutil.NoSuchProcess(process.pid)
        if before and now.birth != before.birth:
            self._known.pop(process.pid, None)
            raise DumpFailed("it started another program (exec) while it was read", cause="unreadable")

    def _through_pyspy(self, request: ReadRequest, problem: Problem, unreadable: str | None = None) -> ProcessReading:
        """Run py-spy as this user, and where that is denied, as root through ``sudo``, which must need no password."""
        has_calls = unreadable is not None or problem.cause == "permission"
        try:
            return PySpyReader(self.require_tool(), request, self.origins).read(problem, has_calls=has_calls)
        except DumpFailed as error:
            as_root = self.require_tool().through_sudo()
            if not error.is_denied or as_root is None or self._sudo_fails:
                raise _because_of(unreadable, error) from error
            try:
                return PySpyReader(as_root, request, self.origins).read(problem, has_calls=has_calls)
            except SudoFailed:
                self._sudo_fails = True
                raise error from None

    def _with_exact_stacks(self, reading: ProcessReading, request: ReadRequest) -> ProcessReading:
        try:
            return PySpyReader(self.require_tool(), request, self.origins).with_exact_stacks(reading)
        except DumpFailed as error:
            if not psutil.pid_exists(request.pid):
                raise
            reason = f"py-spy could not pause it, so it was read without a pause: {error.reason}"
            return replace(reading, problems=[*reading.problems, Problem("stacks", reason, error.cause, error.remedy)])

    def require_tool(self) -> PySpy:
        """The py-spy of this node. Raises :class:`DumpFailed` if it has none."""
        if self.tool is None:
            raise DumpFailed("py-spy was not found on this node", INSTALL_PYSPY, cause="missing")
        return self.tool


def _read_native(request: ReadRequest) -> ProcessReading:
    """The threads of a process that does not run Python, with their waits in the kernel and without stacks."""
    pid = request.pid
    before = marks_off_cpu(pid, proc.threads(pid)[:MAX_NATIVE_THREADS])
    with contextlib.suppress(OSError), open_memory(pid) as memory:
        waits = KernelWaits(request.around.tables, memory)
        calls = {thread: proc.system_call(pid, thread) for thread in before}
        found = {thread: _native_call(call, waits, request) for thread, call in calls.items() if call}
        asleep = {thread: remaining_sleep_s(call, memory) for thread, call in calls.items() if call and call.is_sleep}
        stable = unchanged(before, marks_of(pid, before))
        threads = [
            ThreadReading(
                PythonThread(0, thread, proc.thread_name(pid, thread), (), proc.thread_state(pid, thread) == "R"),
                "user",
                found.get(thread) if thread in stable else None,
                is_stable=thread in stable,
                sleeps=thread in asleep,
                sleep_left_s=asleep.get(thread),
                slices=proc.times_scheduled(mark),
            )
            for thread, mark in before.items()
        ]
        return ProcessReading(threads=threads, access="kernel")
    raise why_denied(pid)


def _native_call(call: proc.SystemCall, waits: KernelWaits, request: ReadRequest) -> Call | None:
    if call.awaits_child:
        return Call(site=WAITPID.id, frame=0, need=Children(pids=request.around.awaited_children(call)))
    return waits.call(call)


def _because_of(unreadable: str | None, error: DumpFailed) -> DumpFailed:
    """The failure of py-spy, with the reason why dstack cannot read the interpreter."""
    if unreadable is None:
        return error
    return DumpFailed(f"{unreadable} ({error.reason})", error.remedy, cause=error.cause, is_denied=error.is_denied)
