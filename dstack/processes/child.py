"""Child processes of dstack, and the messages between each and its parent.

A message has a kind and a value, and is pickled: both processes run the same installation. Children write to what was
their standard output when they began; descriptor 1 itself then leads to standard error, so that nothing that Python or
C code prints can get between two messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import IO, Any, NamedTuple

from dstack import errors
from dstack.processes.gc_pause import GcPause

PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``."""
REAP_S = 1.0
"""The longest wait for a killed process; the kernel may keep it longer."""

_PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path); from dstack.processes.child import run_child; run_child({!r})"
)
"""Nothing is imported from the working directory, where a job may have a ``queue.py`` of its own."""
_BESIDE = (
    "import sys; sys.path[:] = filter(None, sys.path); sys.path.insert(0, {1[0]!r}); import dstack; del sys.path[0];"
    " sys.path += {1!r}; from dstack.processes.child import run_child; run_child({0!r})"
)
"""The same for another Python, which has packages of its own; what it lacks is imported from dstack's."""
_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 16


class Message(NamedTuple):
    """A message; its kind says of which type the value is."""

    kind: str
    value: Any = None


class Messages:
    """The messages that arrive through a pipe, in order; iteration ends with the pipe."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._received = bytearray()

    def __iter__(self) -> Iterator[Message]:
        with contextlib.suppress(EOFError):
            while True:
                yield self.receive()

    def receive(self, deadline: float | None = None) -> Message:
        """The next message.

        Raises :class:`EOFError` when no whole message follows, and :class:`TimeoutError` when it is not there by
        ``deadline``, a ``time.monotonic()``; what has arrived of it stays for the next call.
        """
        while (message := self._whole()) is None:
            self._fill(deadline)
        return message

    def _whole(self) -> Message | None:
        if len(self._received) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
        if len(self._received) < end:
            return None
        with memoryview(self._received) as view:
            message: Message = pickle.loads(view[_LENGTH.size : end])
        del self._received[:end]
        return message

    def _fill(self, deadline: float | None) -> None:
        """Read what is there. A wait in poll is one in the kernel: dstack may inspect the process that waits here."""
        if deadline is not None:
            poll = select.poll()
            poll.register(self._stream, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
        data = os.read(self._stream.fileno(), _CHUNK)
        if not data:
            raise EOFError
        self._received += data


def _send(stream: IO[bytes], message: Message) -> None:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


class Child:
    """A process that runs a module's ``main`` with its :class:`Parent` and these arguments, which are pickled.

    A thread of its own starts it and lives as long: the kernel ends the child with the thread that has started it.
    Another ``python`` of the same minor version imports dstack from the first folder of ``path``, and from all of them
    what it lacks.
    Raises :class:`OSError` if no process can be started, and :class:`ClusterError` where dstack reads no processes.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        start_new_session: bool = False,
        python: str | None = None,
        path: Sequence[str] = (),
    ) -> None:
        errors.require_linux()
        program = _BESIDE if python else _PROGRAM

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [python or sys.executable, "-c", program.format(module, [*path]), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=start_new_session,
            )

        started: Future[subprocess.Popen[bytes]] = Future()
        threading.Thread(target=_start, args=(start, started), name="dstack-child", daemon=True).start()
        self._process = started.result()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._stream = self._process.stdin, self._process.stdout
        self._messages = Messages(self._stream)
        self._sending = threading.Lock()
        with contextlib.suppress(BrokenPipeError):  # it has ended, which the next message says
            self.send("begin", arguments)

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative if a signal has ended it; None while it runs."""
        return self._process.poll()

    def send(self, kind: str, value: object = None) -> None:
        """Send a request. Raises :class:`BrokenPipeError` if the child has ended."""
        with self._sending:
            _send(self._requests, Message(kind, value))

    def receive(self, deadline: float | None = None) -> Message:
        """The next message.

        Raises what the child has sent by :meth:`Parent.send_error`, and otherwise as :meth:`Messages.receive`.
        """
        message = self._messages.receive(deadline)
        if message.kind == "error":
            error, where = message.value
            raise error from _InChild(where)
        return message

    def finish(self) -> None:
        """Say that no request follows."""
        with contextlib.suppress(OSError):
            self._requests.close()

    def kill(self) -> None:
        """Kill it; another thread may call this at any time."""
        with contextlib.suppress(OSError):
            self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended after at most so many seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Kill it, wait a moment for its end, and close the pipes to it; nothing receives its messages any more."""
        self.kill()
        self.finish()
        self.wait(REAP_S)
        self._stream.close()

    def how_ended(self) -> str:
        """What has become of a child that sends nothing any more, as the rest of a sentence."""
        if not self.wait(REAP_S):
            return "sent no result"
        code = self._process.returncode
        return f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"


def _start(start: Callable[[], subprocess.Popen[bytes]], started: Future[subprocess.Popen[bytes]]) -> None:
    """Start a child, and stay until it has ended."""
    try:
        process = start()
    except BaseException as error:
        started.set_exception(error)
        return
    started.set_result(process)
    with contextlib.suppress(ChildProcessError):  # another thread has waited for it
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


class Parent:
    """The process that has started this one: its requests, one after the other until it sends no more."""

    def __init__(self, requests: IO[bytes], messages: IO[bytes]) -> None:
        self._requests = iter(Messages(requests))
        self._messages = messages

    def __iter__(self) -> Iterator[Message]:
        return self._requests

    def receive(self) -> Message:
        """The next request. Raises :class:`BrokenPipeError` if the parent sends no more."""
        message = next(self._requests, None)
        if message is None:
            raise BrokenPipeError
        return message

    def send(self, kind: str, value: object = None) -> None:
        """Send a message; several threads must take turns. Raises :class:`BrokenPipeError` if the parent has ended."""
        _send(self._messages, Message(kind, value))

    def send_error(self, error: Exception) -> None:
        """Send an error of dstack, with its class, its remedy and the traceback; raises it if the parent has ended."""
        if isinstance(error, BrokenPipeError):
            raise error
        import traceback

        self.send("error", (errors.as_dstack_error(error), traceback.format_exc()))


class _InChild(Exception):
    """The traceback of an error in a child process, shown as the cause of that error here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def run_child(module: str) -> None:
    """Run a module's ``main`` in a process that :class:`Child` has started; what it raises is sent to the parent.

    Descriptor 1 leads to standard error before the module is loaded, since loading may print, too.
    """
    die_with(int(sys.argv[1]))
    parent = Parent(sys.stdin.buffer, os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    arguments = parent.receive().value
    with contextlib.suppress(BrokenPipeError):  # the parent has ended
        try:
            with GcPause():
                program = importlib.import_module(module)
            program.main(parent, *arguments)
        except Exception as error:
            parent.send_error(error)


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
