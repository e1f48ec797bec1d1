"""py-spy's stacks in the text that it prints for people, which is all that Ray's own agents hand on.

The text holds names that the looked-at process has made up, so it is bounded in every direction and nothing of it is
believed but its shape. Seen with py-spy 0.4.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from dstack.probes.node.threads import Position, PythonThread, ShownFrame

MAX_CHARACTERS = 4_000_000
MAX_THREADS = 2_000
MAX_FRAMES = 2_000
MAX_NAME = 300
MAX_NUMBER = 2**31 - 1

_PROCESS = re.compile(r"Process (\d{1,10}): (.*)")
_THREAD = re.compile(
    r"Thread (\d{1,19}|0x[0-9A-Fa-f]{1,16}) \((idle|active|active\+gil|gil|idle\+gil)\)(?:: \"(.*)\")?"
)


@dataclass(frozen=True)
class TextStacks:
    """The stacks of one process, and what it calls itself."""

    pid: int
    title: str
    threads: list[PythonThread[ShownFrame]]


def parse(text: str) -> TextStacks | None:
    """The stacks in a text of py-spy's; None where it is none of these.

    Lines of no known form, and all that is beyond the bounds, are left out.
    """
    lines = text[:MAX_CHARACTERS].split("\n")
    head = next((match for line in lines[:5] if (match := _PROCESS.fullmatch(line))), None)
    if head is None:
        return None
    threads: list[PythonThread[ShownFrame]] = []
    frames: list[ShownFrame] = []
    for line in lines:
        thread, position = _thread(line), _position(line)
        if thread is not None:
            frames = []
            threads.append(replace(thread, frames=frames))
        elif position and threads and len(frames) < MAX_FRAMES:
            frames.append(ShownFrame(position))
        if len(threads) >= MAX_THREADS:
            break
    return TextStacks(int(head[1]), head[2][:MAX_NAME], threads)


def _thread(line: str) -> PythonThread[ShownFrame] | None:
    """A thread's headline; its number is the operating system's in decimal, else it is of no use here."""
    match = _THREAD.fullmatch(line)
    if match is None:
        return None
    known = match[1].isdigit() and int(match[1]) <= MAX_NUMBER
    return PythonThread(
        thread_id=0,
        os_thread_id=int(match[1]) if known else 0,
        name=(match[3] or "")[:MAX_NAME],
        frames=[],
        is_running=match[2].startswith("active"),
    )


def _position(line: str) -> Position | None:
    """``    name (file:line)``, parsed without a regular expression: a name may be made to keep one busy."""
    name, opening, place = line[4:-1].partition(" (")
    if not (line.startswith("    ") and line.endswith(")") and name and opening and place):
        return None
    file, _, number = place.rpartition(":")
    has_number = file and number.isdecimal() and len(number) <= 10
    name = name[:MAX_NAME]
    return Position(
        file=(file if has_number else place)[:MAX_NAME],
        function=name.rpartition(".")[2],
        qualified=name,
        line=min(int(number), MAX_NUMBER) if has_number else 0,
    )
