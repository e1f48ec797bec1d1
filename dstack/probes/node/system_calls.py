"""What a thread that sleeps in a system call waits for, and which processes are at the other end.

The kernel shows the call with its arguments, what each file descriptor refers to, and the two ends of sockets and
pipes. Nothing is stopped, traced or changed, and no content is read. Seen on Linux 6, x86-64 and aarch64.
"""

from __future__ import annotations

import contextlib
import re
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from dstack.call_sites import KERNEL
from dstack.observed.calls import Call, End, EndKind, EndState, KernelObjects
from dstack.probes.node.cpython.memory import ProcessMemory, UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.procfs import open_files, proc
from dstack.probes.node.procfs.open_files import LISTENING, SYN_SENT, KernelTables, TcpSocket

MAX_ENDS = 64
"""The most descriptors of one thread that are followed."""
MAX_POLLED = 4_096
LONGEST_TIMEOUT_S = 1e7
RAY_PROCESSES = {"raylet", "gcs_server", "ray::DashboardAgent", "ray::RuntimeEnvAgent"}
"""Processes of a cluster that send what code of a job has asked for, and nothing by themselves; seen on Ray 2.60."""

READS = ("read", "readv", "recvfrom", "recvmsg", "recvmmsg")
ACCEPTS = ("accept", "accept4")
WRITES = ("write", "writev", "sendto", "sendmsg", "sendmmsg", "connect")
LOCKING = ("flock", "fcntl")
OF_FILES = ("ioctl", "fsync", "fdatasync", *LOCKING)
POLLS, SELECTS = ("poll", "ppoll"), ("select", "pselect6")
EPOLLS = ("epoll_wait", "epoll_pwait", "epoll_pwait2")
FUTEXES = ("futex", "futex_waitv")
TIMER = "anon_inode:[timerfd]"
TO_READ, TO_WRITE = 0x001 | 0x002 | 0x2000, 0x004
"""Events of ``poll``: POLLIN, POLLPRI and POLLRDHUP; POLLOUT. Those of ``epoll`` have the same bits."""
NANOSECONDS = 1e9
MAX_HOST = 254
MAX_CLIENT = 16
"""The most frames, innermost first, in which a client of the network is searched for."""
HOST = ("host", "hostname", "_host", "server_hostname")
"""The variables and attributes in which clients keep the name of the host that they are connected to."""
HOST_NAME = re.compile(r"(?!localhost$)[A-Za-z0-9_.-]*[A-Za-z][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class _Want:
    """A descriptor that a thread waits on: to read from it, or to write to it."""

    fd: int
    is_write: bool = False


@dataclass(frozen=True)
class Surroundings:
    """What is around a process: the processes ``below`` it, and the descriptors and sockets of its host.

    Of a process that was forked, ``threads_of_parent`` are the OS ids of the parent's threads by Python's; a fork has
    only one of them.
    """

    below: Callable[[], Collection[int]] = tuple
    tables: KernelTables = field(default_factory=KernelTables)
    threads_of_parent: Mapping[int, int] | None = None

    def awaited_children(self, blocked_in: proc.SystemCall) -> tuple[int, ...]:
        """The processes below whose end a system call waits for: one of them, or any."""
        if not blocked_in.awaits_child:
            return ()
        return tuple(pid for pid in self.below() if blocked_in.awaited_pid in (None, pid))


class KernelWaits:
    """The kernel waits of the threads of one process."""

    def __init__(self, tables: KernelTables, memory: ProcessMemory) -> None:
        self._tables = tables
        self._memory = memory
        self._pid = memory.pid
        self._native_ends: tuple[End, ...] | None = None

    def objects(self, call: proc.SystemCall, native: Collection[int] = ()) -> KernelObjects | None:
        """What a system call waits for; None for one that is not known to wait, or that waits for dstack itself.

        ``native`` are the threads of the process that do not run Python: where one of them may wake the waiter, by an
        eventfd or a futex, the ends that they wait on belong to it, too.
        """
        if not call.name or call.is_sleep:
            return None
        ends = () if call.name in FUTEXES else tuple(self._ends(call))
        if any(map(self._tables.leads_to_dstack, ends)):
            return None
        if call.name in EPOLLS:  # of a library with many descriptors, Ray's own among them
            ends = tuple(end for end in ends if not (end.identity and self._is_inside_or_rays(end)))
        by_thread = call.name in FUTEXES or any(end.what == "eventfd" for end in ends)
        through = self._through(native) if by_thread else ()
        return KernelObjects(system_call=call.name, ends=(*ends, *through), is_by_thread=by_thread)

    def call(self, blocked_in: proc.SystemCall, name: str | None = None, native: Collection[int] = ()) -> Call | None:
        """The wait of a thread in a system call, called by the ``name`` of a function, or else by that of the call.

        None where :meth:`objects`, to which ``native`` is passed, finds none.
        """
        need = self.objects(blocked_in, native)
        if need is None:
            return None
        timeout_s = self.timeout_s(blocked_in)
        return Call(
            site=KERNEL.id, frame=0, need=need, name=name or f"system call {need.system_call}", timeout_s=timeout_s
        )

    def _through(self, native: Collection[int]) -> tuple[End, ...]:
        """What the native threads wait on that leads out of the process; Ray's own processes act for no one."""
        if self._native_ends is None and native:
            self._native_ends = tuple(self._find_native_ends(native))
        return self._native_ends or ()

    def _find_native_ends(self, native: Collection[int]) -> Iterator[End]:
        found: set[str] = set()
        for thread in native:
            call = proc.system_call(self._pid, thread)
            for end in self._ends(call) if call is not None and call.name else ():
                if end.identity and end.identity not in found and not self._is_inside_or_rays(end):
                    found.add(end.identity)
                    yield replace(end, through=proc.thread_name(self._pid, thread))

    def _is_inside_or_rays(self, end: End) -> bool:
        """Whether it leads to the process itself, or is one through which Ray sends what code of a job asks for."""
        if not self._tables.ray_ports.isdisjoint(address.rpartition(":")[2] for address in end.identity.split()):
            return True
        pids = {holder.pid for holder in end.holders}
        return bool(pids) and (pids <= {self._pid} or {holder.name for holder in end.holders} <= RAY_PROCESSES)

    def lock_file(self, path: str) -> End | None:
        """A lock file by its path, with the processes that hold its lock, or else have it open; None for other files.

        By its name, or by a lock, it is one.
        """
        key = proc.lock_key(self._pid, path) if path.startswith("/") else None
        held = self._tables.locks.get(key, []) if key else []
        if key is None or not (held or "lock" in path.rpartition("/")[2]):
            return None
        holders = self._tables.holders_of(held) if held else self._tables.holders(path)
        return End(what="file lock", name=path, identity=path, holders=holders)

    def timeout_s(self, call: proc.SystemCall) -> float | None:
        """The seconds after which the call ends by itself, as it was called; None if it has no timeout."""
        with contextlib.suppress(UnreadableMemory, struct.error):
            timeouts = [self._timeout_s(call), *self._timers(call)]
            return min((one for one in timeouts if one is not None and 0 <= one < LONGEST_TIMEOUT_S), default=None)
        return None

    def _timers(self, call: proc.SystemCall) -> Iterator[float | None]:
        """When the armed timers among the descriptors will fire that a call waits on."""
        for want in self._wanted(call):
            if self._tables.file_of(self._pid, want.fd) == TIMER:
                yield proc.timer_s(self._pid, want.fd)

    def _timeout_s(self, call: proc.SystemCall) -> float | None:
        arguments = call.arguments
        match call.name:
            case "poll":
                return _milliseconds(arguments[2])
            case "epoll_wait" | "epoll_pwait":
                return _milliseconds(arguments[3])
            case "ppoll" | "rt_sigtimedwait":
                return self._time_at(arguments[2], NANOSECONDS)
            case "epoll_pwait2" | "semtimedop":
                return self._time_at(arguments[3], NANOSECONDS)
            case "select":
                return self._time_at(arguments[4], 1e6)
            case "pselect6":
                return self._time_at(arguments[4], NANOSECONDS)
            case "recvfrom" | "recvmsg" | "read" | "accept" | "accept4":
                return open_files.receive_timeout_s(self._pid, arguments[0])
            case "sendto" | "sendmsg" | "write":
                return open_files.send_timeout_s(self._pid, arguments[0])
            case "connect":
                own = open_files.send_timeout_s(self._pid, arguments[0])
                inode = self._tables.file_of(self._pid, _int32(arguments[0]))[8:-1]
                return open_files.CONNECT_TIMEOUT_S if own is None and inode in self._tables.tcp_of(self._pid) else own
            case _:
                return None

    def _time_at(self, address: int, per_second: float) -> float | None:
        if not address:
            return None
        seconds, rest = self._memory.unpack("<qq", address)
        return float(seconds) + float(rest) / per_second

    # Descriptors

    def _ends(self, call: proc.SystemCall) -> Iterator[End]:
        if call.awaits_signal:
            yield End(what="signal")
            return
        if call.awaits_child:
            yield from self._child(call.awaited_pid)
            return
        wants = self._wanted(call)
        yield from (self._end(want, call.name) for want in wants[:MAX_ENDS])
        if len(wants) > MAX_ENDS:
            yield End(what="unreadable")

    def _child(self, pid: int | None) -> Iterator[End]:
        """The child whose end is awaited, if its pid here is the one that the process itself knows."""
        figures = proc.figures(pid) if pid else None
        if pid and figures and figures.parent_pid == self._pid:
            yield End(what="process", holders=self._tables.holders_of([pid]))

    def _wanted(self, call: proc.SystemCall) -> Sequence[_Want]:
        """The descriptors that a call waits on, at most one more than are followed; none if a part is unreadable."""
        with contextlib.suppress(UnreadableMemory):
            return list(islice(self._wants(call), MAX_ENDS + 1))
        return ()

    def _wants(self, call: proc.SystemCall) -> Iterator[_Want]:
        name, arguments = call.name, call.arguments
        if name in READS or name in ACCEPTS:
            yield _Want(_int32(arguments[0]))
        elif name in WRITES or name in OF_FILES:
            yield _Want(_int32(arguments[0]), is_write=name in WRITES)
        elif name in POLLS:
            yield from self._polled(arguments[0], arguments[1])
        elif name in SELECTS:
            yield from self._selected(arguments)
        elif name in EPOLLS:
            yield from self._of_epoll(_int32(arguments[0]))

    def _polled(self, address: int, count: int) -> Iterator[_Want]:
        data = self._memory.read(address, 8 * min(count, MAX_POLLED)) if count else b""
        for fd, events, _ in struct.iter_unpack("=iHH", data):
            if fd >= 0:
                yield _Want(fd, is_write=bool(events & TO_WRITE) and not events & TO_READ)

    def _selected(self, arguments: tuple[int, ...]) -> Iterator[_Want]:
        count = min(_int32(arguments[0]), 1024)
        for address, is_write in ((arguments[1], False), (arguments[2], True)):
            if address and count > 0:
                bits = int.from_bytes(self._memory.read(address, (count + 7) // 8), "little")
                yield from (_Want(fd, is_write) for fd in range(count) if bits >> fd & 1)

    def _of_epoll(self, epoll: int, depth: int = 2) -> Iterator[_Want]:
        for fd, events in proc.epoll_set(self._pid, epoll):
            if depth and self._tables.file_of(self._pid, fd) == "anon_inode:[eventpoll]":
                yield from self._of_epoll(fd, depth - 1)
            else:
                yield _Want(fd, is_write=bool(events & TO_WRITE) and not events & TO_READ)

    def _end(self, want: _Want, call: str) -> End:
        file = self._tables.file_of(self._pid, want.fd)
        if file.startswith("pipe:"):
            holders = self._tables.holders(file, can_write=not want.is_write)
            return End(what="pipe", identity=file, is_write=want.is_write, holders=holders)
        if file.startswith("socket:"):
            return replace(self._socket(file[8:-1]), is_write=want.is_write)
        if file.startswith("anon_inode:"):
            return self._anonymous(file, want)
        if file.startswith(("/dev/pts", "/dev/tty", "/dev/console")):
            return End(what="terminal", name=file)
        if call in LOCKING:
            return self._lock(want.fd, file)
        return End(what="file" if file else "unreadable", name=file, is_write=want.is_write)

    def _anonymous(self, file: str, want: _Want) -> End:
        kind = file.removeprefix("anon_inode:").strip("[]")
        if kind == "pidfd" and (pid := proc.pid_of_pidfd(self._pid, want.fd)):
            return End(what="process", holders=self._tables.holders_of([pid]))
        kinds: dict[str, EndKind] = {
            "eventfd": "eventfd",
            "timerfd": "timer",
            "inotify": "directory",
            "signalfd": "signal",
        }
        return End(what=kinds.get(kind, "other"), name="" if kind in kinds else kind)

    def _lock(self, fd: int, path: str) -> End:
        return End(what="file lock", name=path, identity=path, holders=self._tables.lock_holders(self._pid, fd, path))

    # Sockets

    def _socket(self, inode: str) -> End:
        if one := self._tables.tcp_of(self._pid).get(inode):
            return self._tcp_end(one)
        if unix := self._tables.unix.get(inode):
            peer = self._tables.unix.get(unix.peer or "")
            holders = self._tables.holders(f"socket:[{unix.peer}]") if unix.peer else ()
            state: EndState = "listening" if unix.is_listening else "connected" if unix.peer else "closed"
            name = unix.path or (peer.path if peer else "")
            waiting = unix.unread + (peer.unsent if peer else 0)
            return End(
                what="Unix socket", name=name, identity=f"unix:{inode}", state=state, holders=holders, unread=waiting
            )
        return End(what="socket")

    def _tcp_end(self, one: TcpSocket) -> End:
        end = End(
            what="TCP", identity=f"{one.local} {one.remote}", name=one.remote, unread=one.unread, unsent=one.unsent
        )
        if one.state == LISTENING:
            return replace(end, state="listening", name=one.local)
        if one.state == SYN_SENT:
            listener = self._tables.listener(self._pid, one.remote)
            holders = self._tables.holders(f"socket:[{listener}]") if listener else ()
            is_refused = self._tables.is_refused(self._pid, one.remote)
            return replace(end, state="refused" if is_refused else "connecting", holders=holders)
        peer = self._tables.tcp_by_address.get(f"{one.remote} {one.local}")
        if peer is None:
            return replace(end, state="connected" if one.is_connected else "closed")
        holders = self._tables.holders(f"socket:[{peer[0]}]")
        return replace(
            end,
            state="connected" if one.is_connected else "closed",
            holders=holders,
            unread=one.unread + peer[1].unsent,
        )


def with_host(call: Call, frames: Sequence[MemoryFrame], objects: Objects) -> Call:
    """The call with the host's name at the other end of its only connection, where a frame or its object has it."""
    if not isinstance(call.need, KernelObjects) or [end.what for end in call.need.ends] != ["TCP"]:
        return call
    (end,) = call.need.ends
    host = next(filter(None, (_host_in(frame, objects) for frame in frames[:MAX_CLIENT])), None)
    named = replace(end, name=f"{host} ({end.name})")
    return replace(call, need=replace(call.need, ends=(named,))) if host and end.name else call


def _host_in(frame: MemoryFrame, objects: Objects) -> str | None:
    """The name of a host, and no address, in a variable of a frame, or in an attribute of its object."""
    with contextlib.suppress(UnreadableMemory):
        owner = frame.local("self")
        attributes = objects.attributes(owner) if owner else {}
        words = (found for name in HOST for found in (frame.local(name), attributes.get(name)))
        texts = (objects.text(word, MAX_HOST) for word in words if word and objects.is_a(word, "str"))
        return next((text for text in texts if HOST_NAME.fullmatch(text)), None)
    return None


def remaining_sleep_s(call: proc.SystemCall, memory: ProcessMemory) -> float | None:
    """How long a thread in ``time.sleep`` will sleep on; None if that cannot be read. CPython 3.11 to 3.15."""
    with contextlib.suppress(UnreadableMemory, struct.error):
        if call.name == "clock_nanosleep" and call.arguments[1] & 1:  # TIMER_ABSTIME
            seconds, nanoseconds = memory.unpack("<qq", call.arguments[2])
            return max(0.0, float(seconds + nanoseconds / NANOSECONDS - time.clock_gettime(call.arguments[0] & 0xFF)))
        position = {"nanosleep": 0, "clock_nanosleep": 2}.get(call.name, 4)
        at, per_second = call.arguments[position], 1e6 if call.name == "select" else NANOSECONDS
        seconds, rest = memory.unpack("<qq", at)
        return float(seconds + rest / per_second)
    return None


def _int32(value: int) -> int:
    return int.from_bytes((value & 0xFFFFFFFF).to_bytes(4, "little"), "little", signed=True)


def _milliseconds(value: int) -> float | None:
    timeout = _int32(value)
    return None if timeout < 0 else timeout / 1000
