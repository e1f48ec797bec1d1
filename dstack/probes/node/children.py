"""The processes that workers and drivers have started themselves, as multiprocessing does.

What Ray starts below a driver that begins a cluster of its own is not the application's, and dstack's own is nobody's.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator

from dstack.probes.node.kernel import SystemCall, has_mapped
from dstack.probes.node.on_demand import on_demand

RAY_PROGRAMS = ("raylet", "gcs_server")
RAY_SCRIPT = re.compile(r"/ray/(?:dashboard|autoscaler|_private|util/client)/|^ray\.util\.client\.server$")
"""What Ray runs for a cluster beside its workers, by its command line; seen on Ray 2.46 and 2.60."""
OWN = re.compile(r"^dstack(?:\.|$)|/dstack$|run_module\('dstack\.")
HELPERS = re.compile(r"^from multiprocessing\.(?:resource_tracker|forkserver) import ")
"""What keeps multiprocessing's books or forks for it; what it forks is of interest."""
PYTHON = re.compile(r"python[\d.]*")
FIRST_WORDS = 4


class Families:
    """Who has started whom on this host, as it was when first asked.

    The processes that are ``known``, and this one, are nobody's children.
    """

    def __init__(self, known: Collection[int] = ()) -> None:
        self._known = {*known, os.getpid()}

    @on_demand
    def _parents(self) -> dict[int, int]:
        return dict(_parents())

    @on_demand
    def _started(self) -> dict[int, list[int]]:
        started: dict[int, list[int]] = defaultdict(list)
        for pid, parent in sorted(self._parents.items()):
            started[parent].append(pid)
        return started

    def below(self, pid: int) -> dict[int, int]:
        """All that a worker or driver has started, and what these have: the parent of each by pid, nearest first."""
        found: dict[int, int] = {}
        ahead = [pid]
        for parent in ahead:
            for child in self._started.get(parent, ()):
                if child not in found and child not in self._known and not _is_others(child):
                    found[child] = parent
                    ahead.append(child)
        return found


def is_python(pid: int) -> bool:
    """Whether a process runs Python."""
    with contextlib.suppress(OSError):
        program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        return PYTHON.fullmatch(program) is not None or has_mapped(pid, "/libpython3")
    return False


def is_helper(pid: int, parent: int) -> bool:
    """Whether a process is one of multiprocessing's own; what it forks has the same command line."""
    words = _words(pid)
    return any(map(HELPERS.match, words)) and words != _words(parent)


def awaited_children(pid: int, call: SystemCall, below: Collection[int]) -> tuple[str, list[int]]:
    """The processes below one whose end it waits for, or who alone can write to the pipe it reads from; and its name.

    Nobody where the process itself could write there too.
    """
    if call.awaited_pid is not None:
        return "os.waitpid", [one for one in below if one == call.awaited_pid]
    if call.read_from is not None:
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/{pid}/fd/{call.read_from}")
            if link.startswith("pipe:") and not _can_write(pid, link):
                return "reading from a pipe", [one for one in below if _can_write(one, link)]
    return "", []


def _can_write(pid: int, link: str) -> bool:
    """Whether a process can write to a pipe, by what its descriptors link to."""
    return any(_may_write(pid, number) for number in _descriptors(pid, link))


def _descriptors(pid: int, link: str) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.readlink(f"{folder}/{number}") == link:
                    yield number


def _may_write(pid: int, number: str) -> bool:
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
        flags = next((line.split()[1] for line in file if line.startswith("flags:")), "0")
        return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _parents() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with (
                contextlib.suppress(OSError, IndexError, ValueError),
                open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file,
            ):
                yield int(name), int(file.read().rpartition(")")[2].split()[1])


def _is_others(pid: int) -> bool:
    """Whether a process is one that Ray needs for a cluster, or one of dstack's."""
    with (
        contextlib.suppress(OSError),
        open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file,
    ):
        if file.read().strip() in RAY_PROGRAMS:
            return True
    return any(RAY_SCRIPT.search(word) or OWN.search(word) for word in _words(pid))


def _words(pid: int) -> list[str]:
    """How its command line begins, without the program."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
        return file.read(1 << 12).split("\0")[1 : 1 + FIRST_WORDS]
    return []
