"""Processes in Java and C++: with ``--native`` their stacks, by jstack and gdb, without it only the language.

A process of Ray's in such a language has mapped Ray's library for it, as seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dstack.observed.calls import Call, HeldRefs, Unreadable
from dstack.observed.processes import Access, Role
from dstack.probes.node.commands import run
from dstack.probes.node.jstack_and_gdb import NativeThread, parse_gdb, parse_jstack
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import DumpFailed, last_words, why_denied, why_refused
from dstack.probes.node.procfs.proc import Mapping
from dstack.probes.node.reading import Problem, ProcessReading, Request, ThreadReading
from dstack.probes.node.threads import PythonThread, ShownFrame

TIMEOUT_S = 20.0
"""gdb reads the symbols of all libraries: 1.4 s for Ray's own, which have 89,000."""
UNREAD = "its timeout could not be read"
SIGQUIT = 1 << 2
"""The bit of SIGQUIT in ``SigCgt`` of ``/proc/PID/status``."""
GDB_OPTIONS = (
    *("-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"),
    *("-ex", "set width 0", "-ex", "set print frame-arguments scalars", "-ex", "set print entry-values no"),
    *("-ex", "thread apply all backtrace 1000", "-p"),
)
"""No file of the target or its user is executed, and nothing is downloaded. Commands run after gdb has attached."""


@dataclass(frozen=True)
class Language:
    """A language other than Python: Ray's ``library`` for it, and the ``tool`` that prints its stacks."""

    name: str
    library: str
    tool: Access
    options: Sequence[str]
    parse: Callable[[str], list[NativeThread]]
    remedy: str


JAVA = Language(
    "Java",
    library="libcore_worker_library_java.so",
    tool="jstack",
    options=(),
    parse=parse_jstack,
    remedy="Install the JDK of its version of Java there, of which jstack is a part.",
)
CPP = Language(
    "C++",
    library="libray_api.so",
    tool="gdb",
    options=GDB_OPTIONS,
    parse=parse_gdb,
    remedy="Install gdb there.",
)


def language_of(files: Iterable[Mapping]) -> Language | None:
    """The language of a process that has mapped these files; None for Python, or if it is unknown."""
    names = {os.path.basename(file.path.removesuffix(" (deleted)")) for file in files}
    return next((one for one in (JAVA, CPP) if one.library in names), None)


def threads_of(language: Language, pid: int, timeout_s: float) -> list[NativeThread]:
    """The threads of a process, which the tool pauses. Raises :class:`DumpFailed`."""
    tool = language.tool
    path = shutil.which(tool)
    if path is None:
        raise DumpFailed(
            f"it runs {language.name}, and {tool} was not found on its node", language.remedy, cause="missing"
        )
    if language is JAVA:
        _require_attachable(pid)
    try:
        arguments = [path, *language.options, str(pid)]
        done = run(arguments, timeout_s, is_polite=False, is_apart=True, stops=pid, variables={"LC_ALL": "C"})
    except subprocess.TimeoutExpired as error:
        raise DumpFailed(f"{tool} timed out after {timeout_s:.1f} s", cause="timeout") from error
    except OSError as error:
        raise DumpFailed(f"{tool} could not be started: {error.strerror}", language.remedy) from error
    threads = language.parse(done.stdout.decode(errors="replace"))
    if not threads:
        raise _why_failed(language, pid, done.stderr.decode(errors="replace"))
    return threads


def _require_attachable(pid: int) -> None:
    """Raise if SIGQUIT, which jstack sends, would end the process: with ``-Xrs`` a JVM does not handle it."""
    caught = int(proc.status(pid).get("SigCgt", "0"), 16)
    if not caught & SIGQUIT:
        raise DumpFailed(
            "it runs Java and handles no SIGQUIT, which jstack would send, as with -Xrs", cause="unreadable"
        )


def _why_failed(language: Language, pid: int, stderr: str) -> DumpFailed:
    """The reason from ``/proc`` or the tool's own words; jstack does not say that it was not permitted."""
    if proc.owner(pid) not in (None, os.geteuid()) and os.geteuid() != 0:
        return why_denied(pid)
    said = "\n".join(line for line in stderr.splitlines() if not line.lower().startswith(("warning", "picked up ")))
    if not said.strip():
        return DumpFailed(f"the output of {language.tool} has no threads", cause="malformed")
    return why_refused(pid, said) or DumpFailed(f"{language.tool} failed: {last_words(said)}")


def read_with_tool(language: Language, request: Request) -> ProcessReading:
    """The reading, with a problem that tells what is missing. Raises :class:`DumpFailed`."""
    if not request.options["native"]:
        reason = f"it runs {language.name}, whose stacks are read only with --native"
        remedy = f"Use dstack check --native: {language.tool} then reads them on its node, and pauses the process."
        raise DumpFailed(reason, remedy, cause="unreadable")
    began = time.monotonic()
    running = {thread for thread in proc.threads(request.pid) if proc.thread_state(request.pid, thread) == "R"}
    threads = threads_of(language, request.pid, min(TIMEOUT_S, max(0.1, request.deadline - began)))
    problem = Problem(
        "memory", f"it runs {language.name}: its locks, and the refs of its calls, could not be read", "unreadable"
    )
    return ProcessReading(
        threads=[_reading(thread, request, running) for thread in threads],
        access=language.tool,
        paused_ms=(time.monotonic() - began) * 1000,
        problems=[problem],
    )


def _reading(thread: NativeThread, request: Request, running: set[int]) -> ThreadReading:
    is_running = thread.os_thread_id in running
    call: Call | None = None
    if thread.call and not is_running:
        need = HeldRefs() if thread.call.is_endless else Unreadable(reason=UNREAD)
        call = Call(site=thread.call.site, frame=thread.call.frame, need=need)
    return ThreadReading(
        thread=PythonThread(
            thread_id=0,
            os_thread_id=request.pid if thread.is_main else thread.os_thread_id,
            name=thread.name,
            frames=[ShownFrame(position) for position in thread.positions],
            is_running=is_running,
        ),
        role=_role(thread, request),
        call=call,
    )


def _role(thread: NativeThread, request: Request) -> Role:
    """The role in the words of :class:`dstack.observed.processes.Thread`."""
    if thread.runs_task:
        return "task"
    if thread.is_main or thread.os_thread_id == request.pid:
        return "user" if request.is_driver else "ray"
    return "ray" if thread.is_service else "user"
