"""The output of gdb as threads. Seen with gdb 13, on Ray 2.60 with its library for C++."""

from __future__ import annotations

import os
import re

from dstack.probes.node.other_languages.stacks import MAX_NAME, NativeThread, of_call, ray_call, sections
from dstack.probes.node.stacks.origins import PACKAGES
from dstack.probes.node.threads import Position

THREAD = re.compile(r'Thread \d+ \(.*?(?:LWP|process) (?P<id>\d{1,9})\)?(?: "(?P<name>.*)")?.*\):')
FRAME = re.compile(r"#\d+ +(?:0x[0-9a-f]+ in )?(?P<what>.+)")
AT = re.compile(r" at (?P<file>[^:]+):(?P<line>\d{1,9})$")
FROM = re.compile(r" from (?P<library>/.+)$")

CALLS = {"ray::internal::AbstractRayRuntime::Get": "ray.get", "ray::internal::AbstractRayRuntime::Wait": "ray.wait"}
GETS = ("ray::Get", "ray::GetFromRuntime")
NO_TIMEOUT = re.compile(r"[( ]timeout_ms=(?:@0x[0-9a-f]+: )?-1[,)]")
"""The argument of these functions, which are in the user's library, so that gdb knows it from debugging symbols."""
RUNS_TASK = "ray::internal::TaskExecutor::ExecuteTask"
RAY_LIBRARY = "libray_api.so"
RAY_FILES = "/ray/cpp/include/ray/"
SYSTEM = re.compile(r"(?:/usr)?/lib(?:32|64)?/|/usr/include/|\.\.?/(?:csu|io|misc|nptl|posix|socket|sysdeps|time)/")
"""System libraries and headers, and the source files of glibc, which are relative paths."""


def parse_gdb(text: str) -> list[NativeThread]:
    """The threads that have frames."""
    return [_thread(header, [frame["what"] for frame in frames]) for header, frames in sections(text, THREAD, FRAME)]


def _thread(header: re.Match[str], frames: list[str]) -> NativeThread:
    positions = [_position(frame) for frame in frames]
    functions = [one.qualified for one in positions]
    calls = list(zip(frames, functions, strict=True))[: of_call(positions)]
    gets = (frame for frame, function in calls if function in GETS)
    return NativeThread(
        os_thread_id=int(header["id"]),
        name=(header["name"] or "")[:MAX_NAME],
        positions=positions,
        call=ray_call(positions, CALLS, is_endless=any(map(NO_TIMEOUT.search, gets))),
        runs_task=RUNS_TASK in functions,
        is_service=not any(one.origin == "user" for one in positions),
    )


def _position(what: str) -> Position:
    at, library = AT.search(what), FROM.search(what)
    end = at or library
    name = short_name(_without_group(what[: end.start()] if end else what))
    path = (at["file"] if at else library["library"] if library else "")[:MAX_NAME]
    return Position(
        file=path,
        function=name.rpartition("::")[2],
        qualified=name,
        line=int(at["line"]) if at else 0,
        origin=_origin(name, path),
    )


def _origin(name: str, path: str) -> str:
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
