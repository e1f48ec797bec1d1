"""Reads a process in Java or C++: with ``--native`` its stacks, without it only the language."""

from __future__ import annotations

import time

from dstack.probes.node.other_languages.stacks import NativeThread
from dstack.probes.node.other_languages.tools import Language, threads_of
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import DumpFailed
from dstack.probes.node.reading import Problem, ProcessReading, Request, ThreadReading
from dstack.probes.node.threads import PythonThread, ShownFrame
from dstack.probes.node.wire import CallData

TIMEOUT_S = 20.0
"""gdb reads the symbols of all libraries: 1.4 s for Ray's own, which have 89,000."""
UNREAD = "its timeout could not be read"


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
    call: CallData | None = None
    if thread.call and not is_running:
        call = {"kind": thread.call.kind, "frame": thread.call.frame}
        call |= {"held": True, "timeout_s": None} if thread.call.is_endless else {"unread": UNREAD}
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


def _role(thread: NativeThread, request: Request) -> str:
    """The role in the words of :class:`dstack.observed.Thread`."""
    if thread.runs_task:
        return "task"
    if thread.is_main or thread.os_thread_id == request.pid:
        return "user" if request.is_driver else "ray"
    return "ray" if thread.is_service else "user"
