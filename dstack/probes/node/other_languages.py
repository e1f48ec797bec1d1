"""Processes in Java and C++: with ``--native`` their stacks, by jstack and gdb, without it only the language.

A process of Ray's in such a language has mapped Ray's library for it, as seen on Ray 2.46 and 2.60. The outputs were
seen with JDK 17 (thread ids of JDK 21 and later are decimal) and with gdb 13.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack.observed.calls import Call, HeldRefs, Unreadable
from dstack.observed.processes import Access, Origin, Role
from dstack.probes.node.commands import run
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import DumpFailed, last_words, why_denied, why_refused
from dstack.probes.node.stacks.origins import PACKAGES
from dstack.probes.node.target_process import Problem, ProcessReading, ReadRequest, ThreadReading
from dstack.probes.node.thread_stacks import CodePosition, PythonThread, TextFrame

Section = tuple[re.Match[str], list[re.Match[str]]]
MAX_NAME = 300
"""The longest name of a function, thread or file that is kept."""
MAX_THREADS, MAX_FRAMES = 10_000, 10_000
UNREAD = "its timeout could not be read"


@dataclass(frozen=True)
class NativeThread:
    """A thread with its frames, leaf first.

    ``call`` is the call of Ray's that it is in. ``runs_task`` says that it executes a task, ``is_main`` that the
    program began with it, and ``is_service`` that it belongs to the language's runtime or to a library.
    """

    os_thread_id: int
    name: str
    positions: Sequence[CodePosition]
    call: Call | None = None
    runs_task: bool = False
    is_main: bool = False
    is_service: bool = False


def sections(text: str, thread: re.Pattern[str], frame: re.Pattern[str]) -> Iterator[Section]:
    """The lines that begin threads, each with the lines of its frames; at most so many of both."""
    found: list[Section] = []
    for line in text.splitlines():
        if begin := thread.fullmatch(line):
            found.append((begin, []))
        elif found and len(found[-1][1]) < MAX_FRAMES and (match := frame.fullmatch(line)):
            found[-1][1].append(match)
    return itertools.islice((one for one in found if one[1]), MAX_THREADS)


def of_call(positions: Sequence[CodePosition]) -> int:
    """How many of the innermost frames belong to the call that the user's code has made; 0 without code of the user."""
    return next((index for index, one in enumerate(positions) if one.origin == "user"), 0)


def ray_call(positions: Sequence[CodePosition], sites: Mapping[str, str], *, is_endless: bool) -> Call | None:
    """The call that the user's code has made, if it is in one of these functions; ``sites`` are ids by function."""
    count = of_call(positions)
    found = next((one.qualified for one in positions[:count] if one.qualified in sites), None)
    need = HeldRefs() if is_endless else Unreadable(reason=UNREAD)
    return Call(site=sites[found], frame=count - 1, need=need) if found else None


JAVA_THREAD = re.compile(r'"(?P<name>.*)" (?P<terms>(?:#\d+ )?.*\bnid=(?P<id>0x[0-9a-f]{1,8}|\d{1,10})\b.*)')
JAVA_FRAME = re.compile(r"\tat (?P<method>[^()\s]+)\((?P<place>.*)\)")
JAVA_PLACE = re.compile(r"(?:.*/)?(?P<file>[^/:]+):(?P<line>\d{1,9})")

JAVA_CALLS = {
    "io.ray.runtime.object.NativeObjectStore.nativeGet": "ray.get",
    "io.ray.runtime.object.NativeObjectStore.nativeWait": "ray.wait",
}
JAVA_GET = "io.ray.runtime.AbstractRayRuntime.get"
JAVA_ENDLESS_GETS = 3
"""The frames of ``get(ref)``, which has no timeout: it calls ``get(ref, -1)``, and this ``get(refs, -1)``.

No other call of ``get`` has as many. Seen in the bytecode of Ray 2.46 and 2.60.
"""
JAVA_TASK = "io.ray.runtime.task.TaskExecutor.execute"
JAVA_ORIGINS: dict[str, Origin] = {
    "io.ray.": "ray",
    "java.": "stdlib",
    "javax.": "stdlib",
    "jdk.": "stdlib",
    "sun.": "stdlib",
    "com.sun.": "stdlib",
}


def parse_jstack(text: str) -> list[NativeThread]:
    """The threads that have frames of Java, without those of the virtual machine itself."""
    return [_java_thread(*section) for section in sections(text, JAVA_THREAD, JAVA_FRAME)]


def _java_thread(header: re.Match[str], frames: list[re.Match[str]]) -> NativeThread:
    positions = [_java_position(frame["method"], frame["place"]) for frame in frames]
    functions = [one.qualified for one in positions]
    gets = functions[: of_call(positions)].count(JAVA_GET)
    return NativeThread(
        os_thread_id=int(header["id"], 16 if header["id"].startswith("0x") else 10) & 0x7FFFFFFF,
        name=header["name"][:MAX_NAME],
        positions=positions,
        call=ray_call(positions, JAVA_CALLS, is_endless=gets == JAVA_ENDLESS_GETS),
        runs_task=JAVA_TASK in functions,
        is_main=header["name"] == "main",
        is_service=" daemon " in header["terms"],
    )


def _java_position(method: str, place: str) -> CodePosition:
    """A method is ``package.Class.method``, after the loader or module of the class and a slash, if it has one."""
    method = method.rpartition("/")[2][:MAX_NAME]
    found = JAVA_PLACE.fullmatch(place)
    cls, _, name = method.rpartition(".")
    return CodePosition(
        file=found["file"][:MAX_NAME] if found else cls.rpartition(".")[2].partition("$")[0] + ".java",
        function=name,
        qualified=method,
        line=int(found["line"]) if found else 0,
        origin=next((origin for start, origin in JAVA_ORIGINS.items() if method.startswith(start)), "user"),
    )


GDB_THREAD = re.compile(r'Thread \d+ \(.*?(?:LWP|process) (?P<id>\d{1,9})\)?(?: "(?P<name>.*)")?.*\):')
GDB_FRAME = re.compile(r"#\d+ +(?:0x[0-9a-f]+ in )?(?P<what>.+)")
GDB_AT = re.compile(r" at (?P<file>[^:]+):(?P<line>\d{1,9})$")
GDB_FROM = re.compile(r" from (?P<library>/.+)$")

CPP_CALLS = {"ray::internal::AbstractRayRuntime::Get": "ray.get", "ray::internal::AbstractRayRuntime::Wait": "ray.wait"}
CPP_GETS = ("ray::Get", "ray::GetFromRuntime")
CPP_NO_TIMEOUT = re.compile(r"[( ]timeout_ms=(?:@0x[0-9a-f]+: )?-1[,)]")
"""The argument of these functions, which are in the user's library, so that gdb knows it from debugging symbols."""
CPP_TASK = "ray::internal::TaskExecutor::ExecuteTask"
RAY_LIBRARY = "libray_api.so"
RAY_FILES = "/ray/cpp/include/ray/"
SYSTEM = re.compile(r"(?:/usr)?/lib(?:32|64)?/|/usr/include/|\.\.?/(?:csu|io|misc|nptl|posix|socket|sysdeps|time)/")
"""System libraries and headers, and the source files of glibc, which are relative paths."""


def parse_gdb(text: str) -> list[NativeThread]:
    """The threads that have frames."""
    return [
        _cpp_thread(header, [frame["what"] for frame in frames])
        for header, frames in sections(text, GDB_THREAD, GDB_FRAME)
    ]


def _cpp_thread(header: re.Match[str], frames: list[str]) -> NativeThread:
    positions = [_cpp_position(frame) for frame in frames]
    functions = [one.qualified for one in positions]
    calls = list(zip(frames, functions, strict=True))[: of_call(positions)]
    gets = (frame for frame, function in calls if function in CPP_GETS)
    return NativeThread(
        os_thread_id=int(header["id"]),
        name=(header["name"] or "")[:MAX_NAME],
        positions=positions,
        call=ray_call(positions, CPP_CALLS, is_endless=any(map(CPP_NO_TIMEOUT.search, gets))),
        runs_task=CPP_TASK in functions,
        is_service=not any(one.origin == "user" for one in positions),
    )


def _cpp_position(what: str) -> CodePosition:
    at, library = GDB_AT.search(what), GDB_FROM.search(what)
    end = at or library
    name = short_name(_without_group(what[: end.start()] if end else what))
    path = (at["file"] if at else library["library"] if library else "")[:MAX_NAME]
    return CodePosition(
        file=path,
        function=name.rpartition("::")[2],
        qualified=name,
        line=int(at["line"]) if at else 0,
        origin=_cpp_origin(name, path),
    )


def _cpp_origin(name: str, path: str) -> Origin:
    if name.startswith("ray::") or os.path.basename(path) == RAY_LIBRARY or RAY_FILES in path:
        return "ray"
    if name.startswith(("std::", "__")) or name in ("_start", "??") or SYSTEM.match(path):
        return "stdlib"
    if name.startswith(("boost::", "msgpack::", "absl::", "grpc::")) or PACKAGES.search(path):
        return "library"
    return "user"


def short_name(name: str) -> str:
    """A function without its parameters and without the arguments of its templates, as far as they are balanced."""
    name = name.partition(" [clone ")[0].removesuffix(" const")
    if "operator" in name:
        return name[:MAX_NAME]
    plain = _without_group(name)
    kept, depth = "", 0
    for character in plain:
        depth += character == "<"
        kept += "" if depth else character
        depth -= character == ">" and depth > 0
    return (kept if kept and not depth else plain)[:MAX_NAME]


def _without_group(text: str) -> str:
    """The text without the parentheses at its end and the space before them, if they are balanced."""
    if not text.endswith(")"):
        return text
    depth = 0
    for index in range(len(text) - 1, 0, -1):
        depth += (text[index] == ")") - (text[index] == "(")
        if depth == 0:
            return text[:index].rstrip()
    return text


TIMEOUT_S = 20.0
"""gdb reads the symbols of all libraries: 1.4 s for Ray's own, which have 89,000."""
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


def language_of(files: Iterable[proc.Mapping]) -> Language | None:
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


def read_with_tool(language: Language, request: ReadRequest) -> ProcessReading:
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


def _reading(thread: NativeThread, request: ReadRequest, running: set[int]) -> ThreadReading:
    is_running = thread.os_thread_id in running
    return ThreadReading(
        thread=PythonThread(
            thread_id=0,
            os_thread_id=request.pid if thread.is_main else thread.os_thread_id,
            name=thread.name,
            frames=[TextFrame(position) for position in thread.positions],
            is_running=is_running,
        ),
        role=_role(thread, request),
        call=None if is_running else thread.call,
    )


def _role(thread: NativeThread, request: ReadRequest) -> Role:
    """The role in the words of :class:`dstack.observed.processes.Thread`."""
    if thread.runs_task:
        return "task"
    if thread.is_main or thread.os_thread_id == request.pid:
        return "user" if request.is_driver else "ray"
    return "ray" if thread.is_service else "user"
