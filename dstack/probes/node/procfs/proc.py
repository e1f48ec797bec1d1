"""The one reader of ``/proc``: what the kernel shows of processes and threads, on Linux.

No function raises: for an ended or hidden process or thread it returns an empty value, 0 or None.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
LISTEN = "0A"
"""The state of a socket that listens, in ``/proc/net/tcp``."""
MAX_NAME = 15
"""How many characters of a program's name the kernel keeps."""
MAX_ARGUMENTS = 1 << 12
"""How many characters of a command line are read."""
MAX_OPTIONS = 1 << 16
"""How many characters of such a line are read of Ray: a raylet's contains those of the processes that it starts."""
SCHEDULER_CLOCK = 2
"""In the number of a clock: the CPU time of a process as the scheduler counts it."""
FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the host's own PID namespace, which is fixed in the kernel."""

MEMORY_EVENTS = {"memory": "/sys/fs/cgroup/memory{}/memory.oom_control", "": "/sys/fs/cgroup{}/memory.events"}
"""The files that count the kernel's kills in a cgroup, by the controllers of its hierarchy: versions 1 and 2."""

CHUNK = 1 << 16

File = tuple[str, str]
"""A file's device and inode, as text."""
MAPPED_FILE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ 0+ (\S+) ([1-9]\d*) +(.*)$", re.MULTILINE)
"""A line of ``maps`` for the beginning of a file."""

_ALIKE = {426: "io_uring_enter", 441: "epoll_pwait2", 449: "futex_waitv"}
_X86_64 = """
0 read 1 write 7 poll 16 ioctl 19 readv 20 writev 23 select 34 pause 35 nanosleep 42 connect 43 accept 44 sendto
45 recvfrom 46 sendmsg 47 recvmsg 61 wait4 65 semop 69 msgsnd 70 msgrcv 72 fcntl 73 flock 74 fsync 75 fdatasync
128 rt_sigtimedwait 130 rt_sigsuspend 202 futex 220 semtimedop 230 clock_nanosleep 232 epoll_wait 242 mq_timedsend
243 mq_timedreceive 247 waitid 257 openat 270 pselect6 271 ppoll 281 epoll_pwait 288 accept4 299 recvmmsg 307 sendmmsg
"""
_AARCH64 = """
22 epoll_pwait 25 fcntl 29 ioctl 32 flock 56 openat 63 read 64 write 65 readv 66 writev 72 pselect6 73 ppoll 82 fsync
83 fdatasync 95 waitid 98 futex 101 nanosleep 115 clock_nanosleep 133 rt_sigsuspend 137 rt_sigtimedwait
182 mq_timedsend 183 mq_timedreceive 188 msgrcv 189 msgsnd 192 semtimedop 193 semop 202 accept 203 connect 206 sendto
207 recvfrom 211 sendmsg 212 recvmsg 242 accept4 243 recvmmsg 260 wait4 269 sendmmsg
"""
SYSTEM_CALLS = {
    machine: _ALIKE | {int(number): name for number, name in zip(words[::2], words[1::2], strict=True)}
    for machine, words in (("x86_64", _X86_64.split()), ("aarch64", _AARCH64.split()))
}
"""The system calls in which a thread may wait, by their number on each machine, as :func:`machine` names it.

On aarch64 the kernel has no ``poll``, ``pause``, ``select`` and ``epoll_wait``: the C library calls ``ppoll`` for the
first two, ``pselect6`` and ``epoll_pwait``.
"""
P_PID = 1
"""The kind of id with which ``waitid`` waits for one process."""
CHILDRENS_FAULTS = 8
"""The word of ``stat`` from the state on: ``cminflt``, see ``proc(5)``."""
PROGRAM_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO")
"""Signals that programs give a meaning: Ray 2.60 handles none of them, nor does Python 3.10 to 3.15 by default."""


def machine() -> str:
    """The architecture of this host: a module's constant would have that of the host which the code travels from."""
    return os.uname().machine


# Processes and threads


def children() -> defaultdict[int, list[int]]:
    """The children of every process, by the pid of the parent, in the order of their pids."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for pid in all_pids():
        for parent in _stat(pid)[1:2]:
            found[int(parent)].append(pid)
    return found


def has_ended_children(pid: int) -> bool:
    """Whether a process has waited for a child that ended: the page faults of these are added up in ``stat``."""
    return _stat(pid)[CHILDRENS_FAULTS : CHILDRENS_FAULTS + 1] != ["0"]


def all_pids() -> list[int]:
    """The processes of this host, as far as they are shown."""
    return sorted(int(name) for name in names_in("/proc") if name.isdecimal())


def threads(pid: int) -> list[int]:
    """The OS ids of a process's threads."""
    return [int(name) for name in names_in(f"/proc/{pid}/task")]


def state(pid: int) -> str:
    """The state letter of a process."""
    return "".join(_stat(pid)[:1])


def thread_names(pid: int) -> set[str]:
    """The names of a process's threads, each cut to 15 characters."""
    return {thread_name(pid, thread) for thread in threads(pid)}


def thread_name(pid: int, thread: int) -> str:
    """The name of a thread, cut to 15 characters."""
    return _read(f"/proc/{pid}/task/{thread}/comm").strip()


def thread_state(pid: int, thread: int) -> str:
    """The state letter of a thread, empty if it has ended."""
    return "".join(_fields(_read(f"/proc/{pid}/task/{thread}/stat"))[:1])


def kernel_function(pid: int, thread: int) -> str:
    """The function of the kernel in which a thread sleeps; empty where the kernel does not show it."""
    return _read(f"/proc/{pid}/task/{thread}/wchan").strip().strip("0")


def thread_started(pid: int, thread: int) -> int:
    """When a thread began, in ticks since the kernel's start; 0 if it has ended."""
    words = _fields(_read(f"/proc/{pid}/task/{thread}/stat"))
    return int(words[19]) if len(words) > 19 else 0


@dataclass(frozen=True)
class Birth:
    """The identity of a process and its program: it differs for another process, and after ``exec``."""

    start_ticks: int
    stack_start: int


@dataclass(frozen=True)
class ProcessFigures:
    """Figures of a process: seconds of CPU time, bytes of resident memory, number of threads, state letter, parent.

    ``group`` is its process group: each worker of Ray leads one (2.46 and 2.60).
    """

    birth: Birth
    cpu_s: float
    rss_bytes: int
    num_threads: int
    state: str
    parent_pid: int
    group: int

    @property
    def started_at(self) -> float:
        """Unix time of its start, as psutil computes it."""
        return self.birth.start_ticks / os.sysconf("SC_CLK_TCK") + _booted_at()


def figures(pid: int) -> ProcessFigures | None:
    """The figures of a process, None if it has ended."""
    words = _stat(pid)
    if len(words) < 26:
        return None
    ticks = int(words[11]) + int(words[12])
    return ProcessFigures(
        birth=Birth(int(words[19]), int(words[25])),
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        rss_bytes=int(words[21]) * os.sysconf("SC_PAGE_SIZE"),
        num_threads=int(words[17]),
        state=words[0],
        parent_pid=int(words[1]),
        group=int(words[2]),
    )


def exit_code(pid: int) -> int | None:
    """The exit code of a process that has ended and was not reaped, negative for a signal; None for any other.

    It is 0 where the kernel does not show it to this user.
    """
    words = _stat(pid)
    if words[:1] != ["Z"] or len(words) < 50:
        return None
    with contextlib.suppress(ValueError):
        return os.waitstatus_to_exitcode(int(words[49]))
    return 0


def cpu_clock(pid: int) -> float | None:
    """Seconds of CPU time of a process, to the nanosecond: the clock of ``clock_getcpuclockid(3)``."""
    with contextlib.suppress(OSError):
        return time.clock_gettime(~pid << 3 | SCHEDULER_CLOCK)
    return None


def cpu_ticks() -> tuple[int, int] | None:
    """The ticks of all CPUs of this host: in use, and all of them."""
    words = next((line.split()[1:9] for line in _lines("/proc/stat") if line.startswith("cpu ")), [])
    if len(words) < 5 or not all(map(str.isdecimal, words)):
        return None
    ticks = list(map(int, words))
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _booted_at() -> float:
    """Unix time when the kernel started, whole seconds."""
    return next((float(line.split()[1]) for line in _lines("/proc/stat") if line.startswith("btime ")), 0.0)


def oom_kills(pid: int) -> int | None:
    """How many processes the kernel has killed for lack of memory in the cgroup of a process, since that was made.

    Version 2 counts those of the groups below it, too. None where the kernel does not show it.
    """
    lines = _lines(f"/proc/{pid}/cgroup")
    is_own = lines == _lines("/proc/self/cgroup")  # a container may have its group as the root
    for _, controllers, path in (line.split(":", 2) for line in lines):
        for place in (path, "") if is_own else (path,):
            counts = dict(map(str.split, _lines(MEMORY_EVENTS.get(controllers, "").format(place))))
            if counts.get("oom_kill", "").isdecimal():
                return int(counts["oom_kill"])
    return None


def status(pid: int | str, thread: int | None = None) -> dict[str, str]:
    """What ``status`` shows of a process, ``self`` for this one, or of one of its threads, by name."""
    lines = _lines(f"/proc/{pid}/status" if thread is None else f"/proc/{pid}/task/{thread}/status")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def handled_signals(lines: dict[str, str]) -> tuple[str, ...]:
    """The signals for which a program has a handler, of those that Ray and Python leave to it, by :func:`status`."""
    caught = int(lines.get("SigCgt", "0"), 16)
    return tuple(name for name in PROGRAM_SIGNALS if caught >> (signal.Signals[name] - 1) & 1)


def namespace_pids(pid: int) -> list[int]:
    """The pids of a process in all PID namespaces that it is in: the reader's first, its own last."""
    return [int(word) for word in status(pid).get("NSpid", "").split()]


def tracer(pid: int) -> int:
    """The pid of a process that has attached to any thread of this one, as a debugger does; 0 for none."""
    found = (int(status(pid, thread).get("TracerPid") or 0) for thread in threads(pid))
    return next(filter(None, found), 0)


def has_thread(pid: int, thread: int) -> bool:
    """Whether a process has a thread of this id."""
    return thread > 0 and os.path.exists(f"/proc/{pid}/task/{thread}")


def scheduler_mark(pid: int, thread: int) -> str | None:
    """A text that changes whenever the thread runs: its time on CPU in ns and number of timeslices.

    If the kernel does not count these: its numbers of context switches, or empty while it runs. None for a dead thread.
    """
    mark = _read(f"/proc/{pid}/task/{thread}/schedstat")
    if mark and mark.split()[:1] != ["0"]:
        return mark
    lines = status(pid, thread)
    if not lines:
        return None
    is_running = lines.get("State", "").startswith("R")
    return "" if is_running else " ".join(value for name, value in lines.items() if "ctxt_switches" in name)


def times_scheduled(mark: str) -> int | None:
    """How often a thread has been scheduled, by its :func:`scheduler_mark`; None if it ran at that moment."""
    words = [int(word) for word in mark.split() if word.isdecimal()]
    return words[2] if len(words) == 3 else sum(words) if words else None


def written_bytes(pid: int, thread: int) -> int | None:
    """How many bytes a thread has written to files, pipes and sockets; None where the kernel does not count them."""
    lines = (line.partition(": ") for line in _lines(f"/proc/{pid}/task/{thread}/io"))
    return next((int(value) for what, _, value in lines if what == "wchar"), None)


def name(pid: int) -> str:
    """The name of a process's program, cut to 15 characters."""
    return _read(f"/proc/{pid}/comm").strip()


def arguments(pid: int, count: int) -> list[str]:
    """The first arguments of a process, without its program."""
    return command(pid, 1 + count)[1:]


def command(pid: int, count: int) -> list[str]:
    """The first words of a process's command line, or of what the process has set instead; none of an ended one."""
    words = _read(f"/proc/{pid}/cmdline")[:MAX_ARGUMENTS].rstrip("\0").split("\0")[:count]
    return words if any(words) else []


def ray_options(pid: int) -> list[str]:
    """The options of a process of Ray; those within an option that is itself a command line are no words of it."""
    return _read(f"/proc/{pid}/cmdline")[:MAX_OPTIONS].split("\0")[1:]


def variable(pid: int, name: str) -> str:
    """The value that an environment variable had when a process started, empty for none."""
    return variables(pid, (name,)).get(name, "")


def variables(pid: int, names: Collection[str]) -> dict[str, str]:
    """The same of several, without those that it did not have."""
    pairs = (entry.partition("=") for entry in reversed(_read(f"/proc/{pid}/environ").split("\0")))
    return {name: value for name, _, value in pairs if name in names}


def is_in_first_pid_namespace() -> bool:
    """Whether this process has the pids of the host, and is not in a container with pids of its own."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino == FIRST_PID_NAMESPACE
    return False


def title(pid: int) -> str:
    """The name of a process: that of its program, or what the process has set instead."""
    short = name(pid)
    first = _read(f"/proc/{pid}/cmdline")[:MAX_ARGUMENTS].split("\0")[0]
    whole = os.path.basename(first) if first.startswith("/") else first
    return whole if len(short) >= MAX_NAME and whole.startswith(short) else short


def listening_sockets() -> dict[int, set[str]]:
    """The inodes of the TCP sockets that listen in this network namespace, by port; IPv4 and IPv6."""
    found: dict[int, set[str]] = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for words in map(str.split, _lines(path)[1:]):
            if len(words) > 9 and words[3] == LISTEN:
                found.setdefault(int(words[1].rpartition(":")[2], 16), set()).add(words[9])
    return found


def has_socket(pid: int, inodes: Collection[str]) -> bool:
    """Whether a process has one of these sockets."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return any(file_at(pid, one) in wanted for one in names_in(f"/proc/{pid}/fd"))


def program(pid: int) -> str:
    """The path of a process's program."""
    return _link(f"/proc/{pid}/exe")


def working_directory(pid: int) -> str:
    """The directory a process is in, the root where that is not shown."""
    return _link(f"/proc/{pid}/cwd") or "/"


# Permissions


def owner(pid: int) -> int | None:
    """The user that owns the process's files in ``/proc``: root where the process is not dumpable."""
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}/mem").st_uid
    return None


def ptrace_scope() -> int:
    """``kernel.yama.ptrace_scope``, 0 where the kernel has none."""
    text = _read(PTRACE_SCOPE).strip()
    return int(text) if text.isdecimal() else 0


# File descriptors


def file_at(pid: int, descriptor: int | str) -> str:
    """What a file descriptor refers to, such as ``pipe:[INODE]``."""
    return _link(f"/proc/{pid}/fd/{descriptor}")


def files_of(pid: int) -> dict[int, str]:
    """What each file descriptor of a process refers to; read from the opened folder, in half the time."""
    found: dict[int, str] = {}
    try:
        folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return found
    try:
        for name in os.listdir(folder):
            try:  # a context manager would take a fifth of the time
                found[int(name)] = os.readlink(name, dir_fd=folder)
            except OSError:
                continue
    except OSError:
        pass
    finally:
        os.close(folder)
    return found


def descriptors(pid: int) -> list[str]:
    """The file descriptors of a process."""
    return names_in(f"/proc/{pid}/fd")


def is_open_for(pid: int, descriptor: int | str, can_write: bool) -> bool:
    """Whether a process can write to a file by its descriptor, or can read from it."""
    flags = next((words[1] for words in _fdinfo(pid, descriptor) if words[0] == "flags:"), None)
    only = os.O_RDONLY if can_write else os.O_WRONLY
    return flags is not None and int(flags, 8) & os.O_ACCMODE != only


def epoll_set(pid: int, descriptor: int) -> list[tuple[int, int]]:
    """The descriptors that an epoll instance watches, each with its events."""
    words = (words for words in _fdinfo(pid, descriptor) if words[0] == "tfd:" and len(words) > 3)
    return [(int(words[1]), int(words[3], 16)) for words in words]


def pid_of_pidfd(pid: int, descriptor: int) -> int | None:
    """The process that a pidfd refers to; None if it has been reaped, or is not shown."""
    found = next((int(words[1]) for words in _fdinfo(pid, descriptor) if words[0] == "Pid:"), 0)
    return found if found > 0 else None


def timer_s(pid: int, descriptor: int | str) -> float | None:
    """In how many seconds a timerfd will fire; None if it is not armed."""
    words = next((words for words in _fdinfo(pid, descriptor) if words[0] == "it_value:"), [])
    found = re.findall(r"\d+", " ".join(words[1:]))
    left_s = int(found[0]) + int(found[1]) / 1e9 if len(found) == 2 else 0.0
    return left_s or None


def _fdinfo(pid: int, descriptor: int | str) -> list[list[str]]:
    return [words for line in _lines(f"/proc/{pid}/fdinfo/{descriptor}") if len(words := line.split()) > 1]


def holds_lock(pid: int, descriptor: int) -> bool:
    """Whether a lock on the file belongs to this descriptor, also if another process took it before a fork."""
    return any(words[0] == "lock:" for words in _fdinfo(pid, descriptor))


def file_locks() -> dict[str, list[int]]:
    """The processes that hold a lock on a file, by :func:`lock_key`; those of other PID namespaces are left out."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for words in map(str.split, _lines("/proc/locks")):
        if len(words) > 5 and words[1] != "->" and words[4].isdecimal() and words[4] != "0":
            found[words[5]].append(int(words[4]))
    return found


def lock_key(pid: int, path: str) -> str | None:
    """The device and inode of a file that a process sees, as ``/proc/locks`` has them; None without such a file."""
    with contextlib.suppress(OSError, ValueError):
        info = os.stat(path if path.startswith("/proc/") else f"/proc/{pid}/root{path}")
        return f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    return None


def network_namespace(pid: int) -> str:
    """The network namespace of a process; empty if it is not shown."""
    return _link(f"/proc/{pid}/ns/net")


def lines_of_net(pid: int, table: str) -> list[str]:
    """The lines of a table such as ``tcp`` of the network namespace of a process, without its head."""
    return _lines(f"/proc/{pid}/net/{table}")[1:]


# System calls


@dataclass(frozen=True)
class SystemCall:
    """A blocking system call of a thread; without a name for one that is not known to wait."""

    name: str
    arguments: tuple[int, ...]

    @property
    def is_sleep(self) -> bool:
        """Whether it is ``time.sleep``'s, a ``select`` of nothing up to CPython 3.10: it ends by itself."""
        is_select_of_nothing = self.name in ("select", "pselect6") and self.arguments[:4] == (0, 0, 0, 0)
        return is_select_of_nothing or self.name in ("nanosleep", "clock_nanosleep")

    @property
    def awaits_signal(self) -> bool:
        """Whether only a signal ends it, or a timeout: a ``ppoll`` of nothing without end is ``pause`` on aarch64."""
        is_pause = self.name == "ppoll" and self.arguments[:3] == (0, 0, 0)
        return is_pause or self.name in ("pause", "rt_sigtimedwait", "rt_sigsuspend")

    @property
    def futex(self) -> int | None:
        """The address of the futex it waits for, which is that of the semaphore it belongs to."""
        return self.arguments[0] if self.name == "futex" else None

    @property
    def awaits_child(self) -> bool:
        """Whether it waits for the end of a child process."""
        return self.name in ("wait4", "waitid")

    @property
    def awaited_pid(self) -> int | None:
        """The one child process whose end it waits for, as the process itself knows it; None for any of them."""
        if self.name == "waitid" and self.arguments[0] != P_PID:
            return None
        pid = self.arguments[1 if self.name == "waitid" else 0] & 0xFFFFFFFF if self.awaits_child else 0
        return pid if 0 < pid < 1 << 31 else None

    @property
    def futex_deadline(self) -> int | None:
        """The address of the time at which its wait for the futex ends, if it has a timeout."""
        return self.arguments[3] or None if self.name == "futex" else None


def system_call(pid: int, thread: int) -> SystemCall | None:
    """The call a thread is blocked in; None while it runs, or where the kernel does not say."""
    words = _read(f"/proc/{pid}/task/{thread}/syscall").split()
    with contextlib.suppress(ValueError):
        if len(words) > 2:  # else it runs, or is blocked without having called
            name = SYSTEM_CALLS.get(machine(), {}).get(int(words[0]), "")
            return SystemCall(name, tuple(int(word, 16) for word in words[1:-2]))
    return None


# Mapped memory


@dataclass(frozen=True)
class Mapping:
    """Some of a process's memory, and the file it shows from ``offset`` on, if any.

    ``file`` is its device and inode, which are the same under every path and in every container of this host; ``path``
    is where the process has it.
    """

    start: int
    end: int
    offset: int
    file: File | None
    path: str


def mappings(pid: int) -> list[Mapping]:
    """All of a process's memory, lowest first."""
    return [_mapping(line) for line in _lines(f"/proc/{pid}/maps")]


def has_mapped(pid: int, part: str) -> bool | None:
    """Whether a process has mapped a file with this in its path; None if its mappings are unreadable."""
    mapped = _read(f"/proc/{pid}/maps")
    return part in mapped if mapped else None


def mapped_files(pid: int) -> dict[File, Mapping]:
    """The first mapping of each mapped file, by device and inode: quicker than all mappings."""
    found: dict[File, Mapping] = {}
    for start, end, device, inode, path in MAPPED_FILE.findall(_read_bytes(f"/proc/{pid}/maps")):
        file = device.decode(), inode.decode()
        found.setdefault(file, Mapping(int(start, 16), int(end, 16), 0, file, path.decode("utf-8", "replace")))
    return found


def place_in_file(own_address: int) -> tuple[File, int] | None:
    """The file that is mapped at an address of this process, and the distance from its beginning in memory."""
    own = mappings(os.getpid())
    here = next((one for one in own if one.start <= own_address < one.end), None)
    if here is not None and not here.file:  # zeroed data that follows what is in the file
        before = [one for one in own if one.end <= here.start and one.file]
        here = before[-1] if before else None
    begins = (one for one in own if here is not None and one.file == here.file and one.offset == 0)
    begin = next(begins, None)
    return (begin.file, own_address - begin.start) if begin and begin.file else None


def address_in(pid: int, own_address: int) -> int | None:
    """The address in a process that corresponds to ``own_address``, if both have mapped the same file."""
    place = place_in_file(own_address)
    found = mapped_files(pid).get(place[0]) if place else None
    return found.start + place[1] if place and found else None


def _mapping(line: str) -> Mapping:
    where, _, offset, device, inode, *path = line.split(None, 5)
    start, _, end = where.partition("-")
    file = (device, inode) if inode != "0" else None
    return Mapping(int(start, 16), int(end, 16), int(offset, 16), file, "".join(path))


# Files


def _stat(pid: int | str) -> list[str]:
    return _fields(_read(f"/proc/{pid}/stat"))


def _fields(stat: str) -> list[str]:
    """The words of ``stat`` from the state on: the name before them may contain anything."""
    return stat.rpartition(")")[2].split()


def _read(path: str) -> str:
    return _read_bytes(path).decode("utf-8", "replace")


def _read_bytes(path: str) -> bytes:
    """A file of the kernel's, without the buffers of ``open``: most of these are read in one system call."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = b""
        while more := os.read(handle, CHUNK):
            data += more
        return data
    except OSError:
        return b""
    finally:
        os.close(handle)


def _lines(path: str) -> list[str]:
    """Its lines; ``str.splitlines`` would also split at other characters, which paths and names may contain."""
    return [line for line in _read(path).split("\n") if line]


def _link(path: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def names_in(folder: str) -> list[str]:
    """The names in a folder, none if it cannot be read."""
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []
