"""The output of jstack as threads. Seen with JDK 17, on Ray 2.60; thread ids of JDK 21 and later are decimal."""

from __future__ import annotations

import re

from dstack.probes.node.other_languages.stacks import MAX_NAME, NativeThread, of_call, ray_call, sections
from dstack.probes.node.threads import Position

THREAD = re.compile(r'"(?P<name>.*)" (?P<terms>(?:#\d+ )?.*\bnid=(?P<id>0x[0-9a-f]{1,8}|\d{1,10})\b.*)')
FRAME = re.compile(r"\tat (?P<method>[^()\s]+)\((?P<place>.*)\)")
PLACE = re.compile(r"(?:.*/)?(?P<file>[^/:]+):(?P<line>\d{1,9})")

CALLS = {
    "io.ray.runtime.object.NativeObjectStore.nativeGet": "ray.get",
    "io.ray.runtime.object.NativeObjectStore.nativeWait": "ray.wait",
}
GET = "io.ray.runtime.AbstractRayRuntime.get"
ENDLESS_GETS = 3
"""The frames of ``get(ref)``, which has no timeout: it calls ``get(ref, -1)``, and this ``get(refs, -1)``.

No other call of ``get`` has as many. Seen in the bytecode of Ray 2.46 and 2.60.
"""
RUNS_TASK = "io.ray.runtime.task.TaskExecutor.execute"
ORIGINS = {"io.ray.": "ray", **dict.fromkeys(("java.", "javax.", "jdk.", "sun.", "com.sun."), "stdlib")}


def parse_jstack(text: str) -> list[NativeThread]:
    """The threads that have frames of Java, without those of the virtual machine itself."""
    return [_thread(*section) for section in sections(text, THREAD, FRAME)]


def _thread(header: re.Match[str], frames: list[re.Match[str]]) -> NativeThread:
    positions = [_position(frame["method"], frame["place"]) for frame in frames]
    functions = [one.qualified for one in positions]
    gets = functions[: of_call(positions)].count(GET)
    return NativeThread(
        os_thread_id=int(header["id"], 16 if header["id"].startswith("0x") else 10) & 0x7FFFFFFF,
        name=header["name"][:MAX_NAME],
        positions=positions,
        call=ray_call(positions, CALLS, is_endless=gets == ENDLESS_GETS),
        runs_task=RUNS_TASK in functions,
        is_main=header["name"] == "main",
        is_service=" daemon " in header["terms"],
    )


def _position(method: str, place: str) -> Position:
    """A method is ``package.Class.method``, after the loader or module of the class and a slash, if it has one."""
    method = method.rpartition("/")[2][:MAX_NAME]
    found = PLACE.fullmatch(place)
    cls, _, name = method.rpartition(".")
    return Position(
        file=found["file"][:MAX_NAME] if found else cls.rpartition(".")[2].partition("$")[0] + ".java",
        function=name,
        qualified=method,
        line=int(found["line"]) if found else 0,
        origin=next((origin for start, origin in ORIGINS.items() if method.startswith(start)), "user"),
    )
