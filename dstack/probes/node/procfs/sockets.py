"""The TCP and Unix sockets of this host, with both ends of each, as the kernel shows them without opening any."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from dstack.probes.node.procfs import proc

ESTABLISHED, SYN_SENT, CLOSE_WAIT, LISTENING = 1, 2, 8, 10
"""States of TCP sockets (``net/tcp_states.h``); with CLOSE_WAIT, the other end has closed its direction."""
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
