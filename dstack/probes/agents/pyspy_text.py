"""Parses py-spy's human-readable text, which is the only form that Ray's agents return.

The target chooses the names in the text, so it is untrusted: every size is bounded, and lines of another form are
skipped. Seen with py-spy 0.4.3.
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
    """The stacks of one process, and its title."""

    pid: int
    title: str
    threads: list[PythonThread[ShownFrame]]


def parse(text: str) -> TextStacks | None:
    """Parses a text; None if it is not py-spy's. Skips lines of unknown form, and everything beyond the bounds."""
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
    """Parses a thread's headline, which has its OS id in decimal."""
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
    """Parses ``    name (file:line)`` without a regular expression, which a hostile name could keep busy."""
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
