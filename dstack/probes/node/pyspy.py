"""Thread stacks through py-spy's command: its JSON as typed threads, and a process as read through it.

It is used where memory cannot be read or interpreted, and for exact or native stacks. Its JSON is validated, since the
memory of a process decides what py-spy prints. Seen with py-spy 0.4.3.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from dstack.observed.calls import Call
from dstack.observed.processes import Access, Role
from dstack.probes.node.commands import run
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.cpython.python_process import os_thread_id
from dstack.probes.node.procfs.permissions import DumpFailed, last_words, why_dump_failed, why_not_started
from dstack.probes.node.ray_calls import shallow_calls
from dstack.probes.node.stability import marks_of, marks_off_cpu, unchanged, unproven_call
from dstack.probes.node.stacks.origins import Origins, role_of
from dstack.probes.node.target_process import Problem, ProcessReading, ReadRequest, ThreadReading
from dstack.probes.node.thread_stacks import CodePosition, PythonThread, TextFrame

ADDRESSES = range(2**64)
NUMBERS = range(2**31)
LINES = range(-(2**31), 2**31)
MAX_ITEMS = 100_000
MAX_NAME = 4_096
"""The longest path of Linux."""
MAX_REPR = 1_000
"""py-spy itself prints a little over 128 characters of a value."""

SUDO_TIMEOUT_S = 3.0
"""The timeout of ``sudo``, which may ask a directory on the network before it refuses."""
ATTEMPTS = 3
DUMP_TIMEOUT_S = 5.0
RETRY_S = 0.005

Threads = list[PythonThread[TextFrame]]
_T = TypeVar("_T")


def threads_of(data: bytes) -> Threads:
    """The threads of a dump, with the fields that are used. Raises ValueError for malformed JSON; seen on 0.4.3."""
    try:
        return [_thread(one) for one in _items(json.loads(data))]
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _thread(plain: Any) -> PythonThread[TextFrame]:
    thread = _object(plain)
    return PythonThread(
        thread_id=_number(thread.get("thread_id"), ADDRESSES),
        os_thread_id=_or_none(thread.get("os_thread_id"), lambda one: _number(one, NUMBERS)) or 0,
        name=_or_none(thread.get("thread_name"), _name) or "",
        frames=[_frame(one) for one in _items(thread.get("frames"))],
        is_running=thread.get("active") is True,
    )


def _frame(plain: Any) -> TextFrame:
    """py-spy gives qualified names from CPython 3.11 on."""
    frame = _object(plain)
    name = _name(frame.get("name"))
    position = CodePosition(
        file=_name(frame.get("filename")),
        function=name.rpartition(".")[2],
        qualified=name,
        line=_number(frame.get("line"), LINES),
        module=_or_none(frame.get("module"), _name),
    )
    found = _or_none(frame.get("locals"), lambda found: [_local(one) for one in _items(found)])
    return TextFrame(position, dict(found or ()))


def _local(plain: Any) -> tuple[str, str]:
    local = _object(plain)
    return _name(local.get("name")), _or_none(local.get("repr"), lambda text: _text(text, MAX_REPR)) or ""


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise ValueError("not a list, or a list that is too long")
    return value


def _number(value: Any, among: range) -> int:
    if type(value) is not int or value not in among:
        raise ValueError("integer out of range")
    return value


def _name(value: Any) -> str:
    return _text(value, MAX_NAME)


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise ValueError("not a string")
    return value[:most] if value.isascii() else value[:most].encode(errors="backslashreplace").decode()


def _or_none(value: Any, read: Callable[[Any], _T]) -> _T | None:
    return None if value is None else read(value)


def find_pyspy() -> str | None:
    """The py-spy beside this interpreter or on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


class PySpy:
    """One py-spy executable; ``prefix`` is the command that runs it as another user."""

    def __init__(self, path: str, prefix: Sequence[str] = ()) -> None:
        self.path = path
        self._prefix = list(prefix)

    @property
    def is_setuid(self) -> bool:
        """Whether it runs as root for every user."""
        with contextlib.suppress(OSError):
            found = os.stat(self.path)
            return bool(found.st_mode & stat.S_ISUID) and found.st_uid == 0
        return False

    @property
    def access(self) -> Access:
        """How it gives access to stacks."""
        return "py-spy via sudo" if self._prefix else "setuid py-spy" if self.is_setuid else "py-spy"

    def through_sudo(self) -> PySpy | None:
        """The same py-spy run as root by ``sudo``, if installed; it cannot ask for a password."""
        sudo = shutil.which("sudo")
        return PySpy(self.path, (sudo, "-n", "--")) if sudo else None

    @classmethod
    def from_bytes(cls, binary: bytes) -> PySpy:
        """A py-spy in an anonymous file in memory, so that nothing is installed or left on the node."""
        descriptor = os.memfd_create("py-spy", 0)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(binary)
        return cls(f"/proc/{os.getpid()}/fd/{descriptor}")

    def dump(self, pid: int, *, blocking: bool, native: bool, timeout_s: float) -> Threads:
        """The process's Python threads. Raises :class:`DumpFailed`.

        ``blocking`` stops the target meanwhile (about 3 ms, over 100 ms with ``native``).
        """
        arguments = [*self._prefix, self.path, "dump", "--json", "--locals", "--pid", str(pid)]
        arguments += [] if blocking else ["--nonblocking"]
        arguments += ["--native"] if native else []
        timeout_s = min(timeout_s, SUDO_TIMEOUT_S) if self._prefix else timeout_s
        try:
            stops = pid if blocking else None
            done = run(arguments, timeout_s, is_polite=not blocking, is_apart=bool(self._prefix), stops=stops)
        except subprocess.TimeoutExpired as error:
            if self._prefix:
                raise SudoFailed(f"sudo timed out after {timeout_s:.1f} s", cause="timeout") from error
            raise DumpFailed(f"py-spy timed out after {timeout_s:.1f} s", cause="timeout") from error
        except OSError as error:
            raise why_not_started(self.path, error) from error
        if done.returncode:
            raise self._why_failed(pid, done.stderr.decode(errors="replace"))
        try:
            return threads_of(done.stdout)
        except ValueError as error:
            raise DumpFailed("the output of py-spy is malformed", cause="malformed") from error

    def _why_failed(self, pid: int, stderr: str) -> DumpFailed:
        if self._prefix and not stderr.lstrip().startswith("Error:"):  # py-spy was never started
            return SudoFailed(f"sudo does not run py-spy: {last_words(stderr)}", cause="permission")
        return why_dump_failed(pid, stderr)


class SudoFailed(DumpFailed):
    """dstack's user may not run py-spy as root without a password."""


class PySpyReader:
    """Readings of one process through one py-spy. Methods raise :class:`DumpFailed`."""

    def __init__(self, tool: PySpy, request: ReadRequest, origins: Origins) -> None:
        self._tool = tool
        self._request = request
        self._origins = origins

    def read(self, problem: Problem, *, has_calls: bool) -> ProcessReading:
        """The threads without a pause; ``problem`` is why their memory was not read.

        With ``has_calls``, their calls of Ray are recognised from their frames alone.
        """
        readings: list[tuple[Threads, dict[int, Call]]] = []
        stable: set[int] = set()
        for attempt in range(ATTEMPTS):
            before = marks_off_cpu(self._request.pid)
            try:
                threads = self._with_os_ids(self._dump(blocking=False), before)
            except DumpFailed as error:
                if error.is_denied or isinstance(error, SudoFailed) or attempt == ATTEMPTS - 1:
                    raise
                continue
            readings.append((threads, shallow_calls(threads) if has_calls else {}))
            stable = unchanged(before, marks_of(self._request.pid))
            if stable.issuperset(readings[-1][1]):
                break
            time.sleep(RETRY_S * attempt)
        found = [self._reading(thread, readings, stable) for thread in readings[-1][0]]
        return ProcessReading(threads=found, access=self._tool.access, problems=[problem])

    def with_exact_stacks(self, reading: ProcessReading) -> ProcessReading:
        """The reading, with exact stacks of the threads that ran, from a dump that stops the process.

        With native frames, the stacks of all threads. A failed dump is retried: a process may be stopped at a moment
        when py-spy cannot follow its frames (once in 2,000 dumps of a busy CPython 3.13), or another profiler has it.
        """
        native = self._request.options["native"]
        for attempt in range(ATTEMPTS):
            began = time.monotonic()
            try:
                dumped = self._dump(blocking=True)
                break
            except DumpFailed:
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(RETRY_S)
        paused_ms = (time.monotonic() - began) * 1000
        known = {one.thread.os_thread_id: one for one in reading.threads}
        threads = [self._exact(thread, known.get(thread.os_thread_id), native) for thread in dumped]
        return replace(reading, threads=threads, paused_ms=paused_ms)

    def _exact(self, thread: PythonThread[TextFrame], known: ThreadReading | None, native: bool) -> ThreadReading:
        if known is not None and known.is_stable and not native:
            return known
        shown = [frame.values for frame in thread.frames] if self._request.options["locals"] else ()
        task_id = known.task_id if known else None
        exact = ThreadReading(thread, self._role(thread, task_id), task_id=task_id, locals=shown)
        if known is None or not known.is_stable:
            call = known.call if known and known.call and _leaf(known) == _leaf(exact) else None
            return replace(exact, call=call)
        return replace(exact, call=_relocated(known.call, thread), is_stable=True, sleeps=known.sleeps)

    def _reading(
        self,
        thread: PythonThread[TextFrame],
        readings: Sequence[tuple[Threads, Mapping[int, Call]]],
        stable: set[int],
    ) -> ThreadReading:
        tid = thread.os_thread_id
        is_stable = tid in stable
        if is_stable:
            call = readings[-1][1].get(tid)
        else:
            seen = [(one, calls.get(tid)) for threads, calls in readings for one in threads if one.os_thread_id == tid]
            call = unproven_call(seen)
        return ThreadReading(
            thread=replace(thread, is_running=thread.is_running and not is_stable),
            role=self._role(thread, None),
            call=call,
            is_stable=is_stable,
            is_torn=not is_stable and thread.is_running,
            locals=[frame.values for frame in thread.frames] if self._request.options["locals"] else (),
        )

    def _role(self, thread: PythonThread[TextFrame], task_id: str | None) -> Role:
        request = self._request
        return role_of(thread, task_id, pid=request.pid, is_driver=request.is_driver, origins=self._origins)

    def _with_os_ids(self, threads: Threads, known: Collection[int]) -> Threads:
        """py-spy finds the OS ids of threads only with a pause on CPython 3.10 and earlier; seen on 0.4.3."""
        if all(thread.os_thread_id for thread in threads):
            return threads
        with contextlib.suppress(OSError), open_memory(self._request.pid) as memory:
            return [
                one if one.os_thread_id else replace(one, os_thread_id=os_thread_id(memory, one.thread_id, known))
                for one in threads
            ]
        return threads

    def _dump(self, *, blocking: bool) -> Threads:
        left_s = min(DUMP_TIMEOUT_S, self._request.deadline - time.monotonic())
        if left_s <= 0:
            raise DumpFailed("no time was left to read it", cause="timeout")
        native = blocking and self._request.options["native"]
        return self._tool.dump(self._request.pid, blocking=blocking, native=native, timeout_s=left_s)


def _relocated(call: Call | None, thread: PythonThread[TextFrame]) -> Call | None:
    """The call with the index of its frame in this stack, where native frames come before the Python leaf."""
    if call is None:
        return None
    native = next((index for index, frame in enumerate(thread.frames) if not frame.position.module), 0)
    return replace(call, frame=call.frame + native)


def _leaf(reading: ThreadReading) -> tuple[str, int]:
    position = reading.thread.frames[0].position if reading.thread.frames else None
    return (position.file, position.line) if position else ("", 0)
