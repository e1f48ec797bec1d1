"""What the kernel says a thread is doing, and where it has mapped which file."""

from __future__ import annotations

import contextlib
import os
import platform
from dataclasses import dataclass

FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
SLEEPS = {"x86_64": (35, 230), "aarch64": (101, 115)}.get(platform.machine(), ())
"""nanosleep and clock_nanosleep: what ``time.sleep`` calls from CPython 3.11 on."""
WAIT4 = {"x86_64": 61, "aarch64": 260}.get(platform.machine(), -1)
READ = {"x86_64": 0, "aarch64": 63}.get(platform.machine(), -1)


@dataclass(frozen=True)
class SystemCall:
    """A system call in which a thread is blocked."""

    number: int
    arguments: tuple[int, ...]

    @property
    def is_sleep(self) -> bool:
        """Whether it ends by itself, and needs nobody for that."""
        return self.number in SLEEPS

    @property
    def futex(self) -> int | None:
        """The address of the futex it waits for, which is that of the semaphore it belongs to."""
        return self.arguments[0] if self.number == FUTEX else None

    @property
    def awaited_pid(self) -> int | None:
        """The one child process whose end it waits for, as the process itself knows it."""
        pid = self.arguments[0] & 0xFFFFFFFF if self.number == WAIT4 else 0
        return pid if 0 < pid < 1 << 31 else None

    @property
    def read_from(self) -> int | None:
        """The file descriptor it reads from."""
        return self.arguments[0] if self.number == READ else None

    @property
    def futex_deadline(self) -> int | None:
        """Where the time stands at which it stops to wait for the futex, if it ever does."""
        return self.arguments[3] or None if self.number == FUTEX else None


def system_call(pid: int, thread: int) -> SystemCall | None:
    """The call a thread is blocked in; None while it runs, or where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/task/{thread}/syscall", encoding="ascii") as file:
        words = file.read().split()
        if len(words) > 2:  # else it runs, or is blocked without having called
            return SystemCall(int(words[0]), tuple(int(word, 16) for word in words[1:-2]))
    return None


def address_in(pid: int, own_address: int) -> int | None:
    """Where a process has what stands at ``own_address`` here, if it has mapped the same file."""
    own = mappings(os.getpid())
    here = next((one for one in own if one.start <= own_address < one.end), None)
    if here is None:
        return None
    if not here.file:  # zeroed data that follows what is in the file
        before = [one for one in own if one.end <= here.start and one.file]
        if not before:
            return None
        here = before[-1]
    base = _base(own, here.file)
    there = _base(mappings(pid), here.file)
    return None if base is None or there is None else own_address - base + there


def has_mapped(pid: int, part: str) -> bool:
    """Whether a process has mapped a file with this in its path."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        return any(part in line for line in file)
    return False


@dataclass(frozen=True)
class Mapping:
    """Some of a process's memory, and the file it shows from ``offset`` on, if any.

    ``file`` is its device and inode, which are the same under every path and in every container of this host; ``path``
    is where the process has it.
    """

    start: int
    end: int
    offset: int
    file: tuple[str, str] | None
    path: str


def mappings(pid: int) -> list[Mapping]:
    """All of a process's memory, lowest first; none of one that is gone or another user's."""
    found = []
    with (
        contextlib.suppress(OSError, ValueError),
        open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file,
    ):
        for line in file:
            where, _, offset, device, inode, *path = line.rstrip("\n").split(None, 5)
            start, _, end = where.partition("-")
            file_id = (device, inode) if inode != "0" else None
            found.append(Mapping(int(start, 16), int(end, 16), int(offset, 16), file_id, "".join(path)))
    return found


def _base(among: list[Mapping], file: tuple[str, str] | None) -> int | None:
    return next((one.start for one in among if one.file == file and one.offset == 0), None)


def cwd_of(pid: int) -> str:
    """The directory a process is in, the root where that is not told."""
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return "/"
