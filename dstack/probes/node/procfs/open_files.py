"""The descriptors, sockets and file locks of this host, with the processes that hold each end.

The kernel shows them without opening any.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from dstack.observed.calls import LOOPBACK, End, Holder
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.children import is_of_dstack

ESTABLISHED, SYN_SENT, LISTENING = 1, 2, 10
"""States of TCP sockets (``net/tcp_states.h``)."""
MAX_DUMP = 1 << 24
"""The most bytes of a dump of Unix sockets that are read."""
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, REQUEST, DUMP, DONE, ERROR = 4, 20, 0x1, 0x300, 3, 2
SHOW_NAME, SHOW_PEER, SHOW_QUEUES = 0x1, 0x4, 0x10
NAME, PEER, QUEUES = 0, 2, 4
"""What is asked for each Unix socket, and the attributes that answer (``linux/unix_diag.h``)."""
PIDFD_GETFD = 438
DUMP_TIMEOUT_S = 1.0
CONNECT_TIMEOUT_S = 127.0
"""After which a TCP connect fails that is not answered: the kernel's default, ``net.ipv4.tcp_syn_retries`` = 6."""
MAX_HOLDERS = 32
MAX_SCANNED = 4_000
"""The most processes outside of the job that are searched for the other end of a pipe or socket."""


@dataclass(frozen=True)
class TcpSocket:
    """A TCP socket: the addresses of both ends, as ``HOST:PORT``, and the bytes in its queues."""

    local: str
    remote: str
    state: int
    unread: int
    unsent: int

    @property
    def is_connected(self) -> bool:
        """Whether both directions are open."""
        return self.state == ESTABLISHED


@dataclass(frozen=True)
class UnixSocket:
    """A Unix socket: the inode of its peer, None for none, its path, and the bytes in its queues."""

    peer: str | None
    path: str
    is_listening: bool
    unread: int
    unsent: int


def tcp_sockets(pid: int) -> dict[str, TcpSocket]:
    """The TCP sockets of the network namespace of a process, by inode; IPv4 and IPv6."""
    found = {}
    for name in ("tcp", "tcp6"):
        for words in map(str.split, proc.lines_of_net(pid, name)):
            if len(words) > 9 and words[9] != "0":
                unsent, _, unread = words[4].partition(":")
                found[words[9]] = TcpSocket(
                    address(words[1]), address(words[2]), int(words[3], 16), int(unread, 16), int(unsent, 16)
                )
    return found


def address(text: str) -> str:
    """``127.0.0.1:80`` for ``0100007F:0050``, as the kernel writes it: words of 32 bits in the host's order."""
    host, _, port = text.partition(":")
    words = struct.pack(f"={len(host) // 8}I", *(int(host[at : at + 8], 16) for at in range(0, len(host), 8)))
    if len(words) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, words)}:{int(port, 16)}"
    in_words = socket.inet_ntop(socket.AF_INET6, words)
    mapped = in_words.removeprefix("::ffff:")
    return f"{mapped if '.' in mapped else f'[{in_words}]'}:{int(port, 16)}"


def unix_sockets() -> dict[str, UnixSocket]:
    """The Unix sockets of this network namespace, by inode; empty where the kernel refuses to list them."""
    show = SHOW_NAME | SHOW_PEER | SHOW_QUEUES
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, show, 0xFFFFFFFF, 0xFFFFFFFF)
    with contextlib.suppress(OSError, struct.error):
        return dict(map(_unix_socket, _dump(request)))
    return {}


def _dump(request: bytes) -> Iterator[bytes]:
    """The entries of a dump by ``sock_diag(7)``."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.settimeout(DUMP_TIMEOUT_S)
        link.send(struct.pack("=IHHII", 16 + len(request), SOCK_DIAG_BY_FAMILY, REQUEST | DUMP, 1, 0) + request)
        size = 0
        while size < MAX_DUMP:
            data = link.recv(1 << 18)
            size += len(data)
            at = 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind in (DONE, ERROR) or length < 16:
                    return
                yield data[at + 16 : at + length]
                at += (length + 3) & ~3


def _unix_socket(entry: bytes) -> tuple[str, UnixSocket]:
    _, _, state, _, inode = struct.unpack_from("=BBBBI", entry, 0)
    attributes = dict(_attributes(entry, 16))
    peer = struct.unpack_from("=I", attributes[PEER])[0] if len(attributes.get(PEER, b"")) >= 4 else 0
    queues = attributes.get(QUEUES, b"")
    unread, unsent = struct.unpack_from("=II", queues) if len(queues) >= 8 and state != LISTENING else (0, 0)
    path = attributes.get(NAME, b"").rstrip(b"\0").replace(b"\0", b"@").decode(errors="replace")
    return str(inode), UnixSocket(str(peer) if peer else None, path, state == LISTENING, unread, unsent)


def _attributes(entry: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at + 4 <= len(entry):
        length, kind = struct.unpack_from("=HH", entry, at)
        if length < 4:
            return
        yield kind, entry[at + 4 : at + length]
        at += (length + 3) & ~3


def receive_timeout_s(pid: int, fd: int) -> float | None:
    """The ``SO_RCVTIMEO`` of a socket of another process, which nothing else shows; None for none or if hidden."""
    return _timeout_s(pid, fd, socket.SO_RCVTIMEO)


def send_timeout_s(pid: int, fd: int) -> float | None:
    """The ``SO_SNDTIMEO`` of a socket of another process."""
    return _timeout_s(pid, fd, socket.SO_SNDTIMEO)


def _timeout_s(pid: int, fd: int, option: int) -> float | None:
    """The option of a duplicate of the descriptor, which is closed at once (``pidfd_getfd(2)``, Linux 5.6).

    The kernel allows it to a debugger of the process, as it does the reading of memory. The duplicate shares the
    socket, so asking it changes nothing.
    """
    if not proc.file_at(pid, fd).startswith("socket:"):
        return None
    with contextlib.suppress(OSError, AttributeError):
        pidfd = os.pidfd_open(pid)
        try:
            own = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, pidfd, fd, 0)
            if own < 0:
                return None
            with socket.socket(fileno=own) as duplicate:
                seconds, microseconds = struct.unpack("=qq", duplicate.getsockopt(socket.SOL_SOCKET, option, 16))
        finally:
            os.close(pidfd)
        return seconds + microseconds / 1e6 or None
    return None


class KernelTables:
    """The descriptors, sockets and file locks of this host, each read when it is first needed in a sample.

    ``find_pids`` returns the processes of the jobs. Others are searched for an end that none of these has; with
    ``scans_host`` for all ends, since a process of no job may have one, too. ``ray_ports`` are those at which the core
    workers of the jobs listen.
    """

    def __init__(
        self,
        find_pids: Callable[[], Collection[int]] = tuple,
        ray_ports: Collection[int] = (),
        *,
        scans_host: bool = True,
    ) -> None:
        self._find_pids = find_pids
        self._scans_host = scans_host
        self.ray_ports = {str(port) for port in ray_ports}
        self._links: dict[int, dict[int, str]] = {}
        self._holders: dict[int, Holder] = {}
        self._of_dstack: set[int] = set()
        self._namespaces: dict[int, str] = {}
        self._tcp: dict[str, dict[str, TcpSocket]] = {}

    @cached_property
    def pids(self) -> set[int]:
        """The processes of the jobs."""
        return set(self._find_pids())

    def file_of(self, pid: int, fd: int) -> str:
        """What a descriptor of a process refers to, such as ``pipe:[INODE]``; empty if it cannot be read."""
        return self._files_of(pid).get(fd) or proc.file_at(pid, fd)

    def _files_of(self, pid: int) -> Mapping[int, str]:
        if pid not in self._links:
            self._links[pid] = proc.files_of(pid)
        return self._links[pid]

    # The processes that have a file

    def holders(self, file: str, *, can_write: bool | None = None) -> tuple[Holder, ...]:
        """The processes that have a pipe or socket open, those of the jobs first.

        With ``can_write``, only those that can write to it, or only those that can read from it.
        """
        found = self._owners.get(file, ())
        pids = dict.fromkeys(pid for pid, fd in found if can_write is None or proc.is_open_for(pid, fd, can_write))
        if pids and not self._scans_host:
            return self.holders_of(pids)
        others = (pid for pid in self._others.get(file, ()) if can_write is None or self._is_open(pid, file, can_write))
        return self.holders_of((*pids, *others))

    def holders_of(self, pids: Collection[int]) -> tuple[Holder, ...]:
        """These processes; those beyond the limit are one that is in no job, so that all of them count."""
        found = tuple(map(self._holder, islice(pids, MAX_HOLDERS)))
        left = len(pids) - len(found)
        return (*found, Holder(pid=0, name=f"{left} more processes")) if left > 0 else found

    def _is_open(self, pid: int, file: str, can_write: bool) -> bool:
        return any(one == file and proc.is_open_for(pid, fd, can_write) for fd, one in self._files_of(pid).items())

    def _holder(self, pid: int) -> Holder:
        if pid not in self._holders:
            is_stranger = pid not in self.pids
            self._holders[pid] = (
                Holder(
                    pid=pid,
                    name=proc.title(pid),
                    cpu_s=proc.cpu_clock(pid) or 0.0,
                    is_stopped=proc.state(pid) in ("T", "t"),
                )
                if is_stranger
                else Holder(pid=pid)
            )
            if is_stranger and is_of_dstack(pid):
                self._of_dstack.add(pid)
        return self._holders[pid]

    def leads_to_dstack(self, end: End) -> bool:
        """Whether a process of dstack can act at the other end."""
        return any(holder.pid in self._of_dstack for holder in end.holders)

    @cached_property
    def _owners(self) -> dict[str, list[tuple[int, int]]]:
        """The processes of the jobs with their descriptors, by the pipe or socket that these refer to."""
        found: dict[str, list[tuple[int, int]]] = {}
        for pid in self.pids:
            for fd, file in self._files_of(pid).items():
                if file.startswith(("pipe:", "socket:", "/")):
                    found.setdefault(file, []).append((pid, fd))
        return found

    @cached_property
    def _others(self) -> dict[str, list[int]]:
        """The other processes of this host that may be read, by the pipes, sockets and files that they have open."""
        found: dict[str, list[int]] = {}
        others = (pid for pid in proc.all_pids() if pid not in self.pids)
        for pid in islice(others, MAX_SCANNED):
            for file in set(self._files_of(pid).values()):
                found.setdefault(file, []).append(pid)
        return found

    def lock_holders(self, pid: int, fd: int, path: str) -> tuple[Holder, ...]:
        """The processes that can release the locks on a file that a process has open.

        A fork shares the ``flock`` of its parent: it keeps the lock when the parent ends, and can release it itself.
        """
        takers = self.locks.get(proc.lock_key(pid, f"/proc/{pid}/fd/{fd}") or "", [])
        sharers = [one for one, at in self._owners.get(path, ()) if proc.holds_lock(one, at)] if takers else []
        sharers += [one for one in self._others.get(path, ()) if self._holds_lock_on(one, path)] if takers else []
        living = [taker for taker in takers if proc.state(taker)]
        pids = dict.fromkeys((*sharers, *living)) or takers
        return self.holders_of(pids)

    def _holds_lock_on(self, pid: int, path: str) -> bool:
        return any(file == path and proc.holds_lock(pid, fd) for fd, file in self._files_of(pid).items())

    # Sockets and locks

    def tcp_of(self, pid: int) -> Mapping[str, TcpSocket]:
        """The TCP sockets of the network namespace of a process, by inode."""
        if pid not in self._namespaces:
            self._namespaces[pid] = proc.network_namespace(pid)
        namespace = self._namespaces[pid]
        if namespace not in self._tcp:
            self._tcp[namespace] = tcp_sockets(pid)
        return self._tcp[namespace]

    @cached_property
    def tcp_by_address(self) -> Mapping[str, tuple[str, TcpSocket]]:
        """The TCP sockets of the namespaces of the jobs and of this process, with their inodes, by both addresses."""
        tables = map(self.tcp_of, (os.getpid(), *self.pids))
        return {f"{one.local} {one.remote}": (inode, one) for table in tables for inode, one in table.items()}

    def tcp_ends(self, wanted: Sequence[str]) -> dict[str, tuple[Holder, ...]]:
        """The holders of these sockets of this host, by their addresses, the local one first."""
        found = ((end, self.tcp_by_address.get(end)) for end in wanted)
        return {end: self.holders(f"socket:[{one[0]}]") for end, one in found if one}

    def listener(self, pid: int, address: str) -> str | None:
        """The inode of the socket that listens at an address, as a process sees it; None if there is none."""
        port = address.rpartition(":")[2]
        found = (
            inode
            for inode, one in self.tcp_of(pid).items()
            if one.state == LISTENING and one.local in (address, f"0.0.0.0:{port}", f"[::]:{port}")
        )
        return next(found, None)

    def is_refused(self, pid: int, address: str) -> bool:
        """Whether an address is one of the host of a process, and nothing listens there."""
        return self.is_of_host(pid, address) and self.listener(pid, address) is None

    def is_of_host(self, pid: int, address: str) -> bool:
        """Whether an address is one of the host of a process, by its number or by the host's own name."""
        host = address.rpartition(":")[0]
        own = {one.local.rpartition(":")[0] for one in self.tcp_of(pid).values()}
        return host in (*LOOPBACK, socket.gethostname(), *own)

    def listeners_at(self, pid: int, address: str) -> tuple[Holder, ...] | None:
        """The processes that listen at an address of the host of a process; None where it is one of another host."""
        if not self.is_of_host(pid, address):
            return None
        listener = self.listener(pid, address)
        return self.holders(f"socket:[{listener}]") if listener else ()

    @cached_property
    def unix(self) -> Mapping[str, UnixSocket]:
        """The Unix sockets of this host by inode; empty where the kernel does not show them."""
        return unix_sockets()

    @cached_property
    def locks(self) -> Mapping[str, list[int]]:
        """The processes that hold a lock on a file, by the file's device and inode."""
        return proc.file_locks()
