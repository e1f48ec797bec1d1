"""Child processes of dstack, and the messages that they exchange with their parent.

A message is a line with its kind and the length of its payload, and then the payload. Children write messages to what
was their standard output when they began; descriptor 1 itself then leads to standard error, so that nothing that Python
or C code prints can get between two messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, NoReturn

from dstack import errors

PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``."""
REAP_S = 1.0
"""The longest wait for a killed process; the kernel may keep it longer."""

_CHILD = (
    "import sys; sys.path[:] = filter(None, sys.path); from dstack.processes.child import run_child; run_child({!r})"
)
"""Nothing is imported from the working directory, where a job may have a ``queue.py`` of its own."""
_HEADER = re.compile(rb"([a-z]+) (\d+)\n")
_LONGEST_HEADER = 64
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Message:
    """A message: its kind, a lower-case word, and a payload of any length."""

    kind: str
    payload: bytearray


class Messages:
    """The messages that arrive through a pipe, in order; iteration ends with the pipe."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._received = bytearray()

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                yield self.receive()
            except EOFError:
                return

    def receive(self, deadline: float | None = None) -> Message:
        """The next message.

        Raises :class:`EOFError` when no whole message follows, and :class:`TimeoutError` when it is not there by
        ``deadline``, a ``time.monotonic()``.
        """
        while (end := self._received.find(b"\n") + 1) == 0:
            if len(self._received) > _LONGEST_HEADER:
                raise EOFError
            self._fill(deadline)
        header = _HEADER.fullmatch(self._received[:end])
        if header is None:
            raise EOFError
        payload = bytearray(int(header[2]))
        begun = self._received[end : end + len(payload)]
        payload[: len(begun)] = begun
        del self._received[: end + len(payload)]
        with memoryview(payload) as view:
            at = len(begun)
            while at < len(payload):
                at += self._read(view[at:], deadline)
        return Message(header[1].decode(), payload)

    def _fill(self, deadline: float | None) -> None:
        data = bytearray(_CHUNK)
        self._received += data[: self._read(memoryview(data), deadline)]

    def _read(self, into: memoryview, deadline: float | None) -> int:
        if deadline is not None:
            poll = select.poll()
            poll.register(self._stream, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
        count = os.readv(self._stream.fileno(), [into])
        if not count:
            raise EOFError
        return count


def send(stream: IO[bytes], kind: str, payload: bytes = b"") -> None:
    """Writes a message; several threads must take turns."""
    stream.write(f"{kind} {len(payload)}\n".encode())
    stream.write(payload)
    stream.flush()


def send_error(stream: IO[bytes], error: Exception) -> None:
    """Writes the message ``error``: the class, text and remedy of an error of dstack, and the traceback.

    Raises it instead if the parent has ended.
    """
    if isinstance(error, BrokenPipeError):
        raise error
    import traceback

    known = errors.as_dstack_error(error)
    said = [type(known).__name__, known.message, known.remedy, traceback.format_exc()]
    send(stream, "error", json.dumps(said).encode())


def raise_sent(message: Message) -> NoReturn:
    """Raises the error that the child has sent by :func:`send_error`."""
    name, text, remedy, where = json.loads(message.payload)
    raise getattr(errors, name)(text, remedy) from _InChild(where)


class _InChild(Exception):
    """The traceback of an error in a child process, shown as the cause of that error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def start_child(
    module: str,
    *arguments: str,
    stdin: int = subprocess.DEVNULL,
    environment: Mapping[str, str] | None = None,
    start_new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Starts a module's ``main``, with a stream for its messages and its arguments; they come by ``stdout``.

    It ends with the thread that calls this. Raises :class:`OSError`.
    """
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD.format(module), str(os.getpid()), *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=start_new_session,
    )


def end_child(child: subprocess.Popen[bytes]) -> None:
    """Kills a child, closes the pipes to it, and waits a moment for its end."""
    child.kill()
    for stream in (child.stdin, child.stdout):
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(REAP_S)


def run_child(module: str) -> None:
    """Runs a module's ``main`` in a process that :func:`start_child` has started.

    Descriptor 1 leads to standard error before the module is loaded, since loading may print, too.
    """
    die_with(int(sys.argv[1]))
    messages = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    importlib.import_module(module).main(messages, sys.argv[2:])


def die_with(parent: int) -> None:
    """Has the kernel kill this process when the thread that started it ends; ends it now if ``parent`` has ended.

    This works even if the process hangs in C and runs no Python.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undoes :func:`die_with`, for a process that must end something in order."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
