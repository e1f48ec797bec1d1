"""Thread stacks through py-spy's command, and its JSON as plain frames. Seen with py-spy 0.4.3."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dstack.probes.node.commands import run
from dstack.probes.node.procfs.permissions import DumpFailed, last_words, why_dump_failed, why_not_started
from dstack.probes.node.threads import Position, PythonThread, ShownFrame

ADDRESSES = range(2**64)
NUMBERS = range(2**31)
LINES = range(-(2**31), 2**31)
MAX_ITEMS = 100_000
MAX_NAME = 4_096
"""The longest path of Linux."""
MAX_REPR = 1_000
"""py-spy itself prints a little over 128 characters of a value."""

_T = TypeVar("_T")


def threads_of(data: bytes) -> list[PythonThread[ShownFrame]]:
    """The threads of a dump, with the fields that are used. Raises ValueError for malformed JSON; seen on 0.4.3."""
    try:
        return [_thread(one) for one in _items(json.loads(data))]
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _thread(plain: Any) -> PythonThread[ShownFrame]:
    thread = _object(plain)
    return PythonThread(
        thread_id=_number(thread.get("thread_id"), ADDRESSES),
        os_thread_id=_or_none(thread.get("os_thread_id"), lambda one: _number(one, NUMBERS)) or 0,
        name=_or_none(thread.get("thread_name"), _name) or "",
        frames=[_frame(one) for one in _items(thread.get("frames"))],
        is_running=thread.get("active") is True,
    )


def _frame(plain: Any) -> ShownFrame:
    """py-spy gives qualified names from CPython 3.11 on."""
    frame = _object(plain)
    name = _name(frame.get("name"))
    position = Position(
        file=_name(frame.get("filename")),
        function=name.rpartition(".")[2],
        qualified=name,
        line=_number(frame.get("line"), LINES),
        module=_or_none(frame.get("module"), _name),
    )
    found = _or_none(frame.get("locals"), lambda found: [_local(one) for one in _items(found)])
    return ShownFrame(position, dict(found or ()))


def _local(plain: Any) -> tuple[str, str]:
    local = _object(plain)
    return _name(local.get("name")), _or_none(local.get("repr"), lambda text: _text(text, MAX_REPR)) or ""


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise ValueError("not a list, or a list that is too long")
    return value


def _number(value: Any, among: range) -> int:
    if type(value) is not int or value not in among:
        raise ValueError("integer out of range")
    return value


def _name(value: Any) -> str:
    return _text(value, MAX_NAME)


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise ValueError("not a string")
    return value[:most] if value.isascii() else value[:most].encode(errors="backslashreplace").decode()


def _or_none(value: Any, read: Callable[[Any], _T]) -> _T | None:
    return None if value is None else read(value)


SUDO_TIMEOUT_S = 3.0
"""The timeout of ``sudo``, which may ask a directory on the network before it refuses."""


def find_pyspy() -> str | None:
    """The py-spy beside this interpreter or on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


class PySpy:
    """One py-spy executable; ``prefix`` is the command that runs it as another user."""

    def __init__(self, path: str, prefix: Sequence[str] = ()) -> None:
        self.path = path
        self._prefix = list(prefix)

    @property
    def is_setuid(self) -> bool:
        """Whether it runs as root for every user."""
        with contextlib.suppress(OSError):
            found = os.stat(self.path)
            return bool(found.st_mode & stat.S_ISUID) and found.st_uid == 0
        return False

    @property
    def access(self) -> str:
        """The access of its stacks, in the words of :class:`dstack.observed.Process`."""
        return "py-spy via sudo" if self._prefix else "setuid py-spy" if self.is_setuid else "py-spy"

    def through_sudo(self) -> PySpy | None:
        """The same py-spy run as root by ``sudo``, if installed; it cannot ask for a password."""
        sudo = shutil.which("sudo")
        return PySpy(self.path, (sudo, "-n", "--")) if sudo else None

    @classmethod
    def from_bytes(cls, binary: bytes) -> PySpy:
        """A py-spy in an anonymous file in memory, so that nothing is installed or left on the node."""
        descriptor = os.memfd_create("py-spy", 0)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(binary)
        return cls(f"/proc/{os.getpid()}/fd/{descriptor}")

    def dump(self, pid: int, *, blocking: bool, native: bool, timeout_s: float) -> list[PythonThread[ShownFrame]]:
        """The process's Python threads. Raises :class:`DumpFailed`.

        ``blocking`` stops the target meanwhile (about 3 ms, over 100 ms with ``native``).
        """
        arguments = [*self._prefix, self.path, "dump", "--json", "--locals", "--pid", str(pid)]
        arguments += [] if blocking else ["--nonblocking"]
        arguments += ["--native"] if native else []
        timeout_s = min(timeout_s, SUDO_TIMEOUT_S) if self._prefix else timeout_s
        try:
            stops = pid if blocking else None
            done = run(arguments, timeout_s, is_polite=not blocking, is_apart=bool(self._prefix), stops=stops)
        except subprocess.TimeoutExpired as error:
            if self._prefix:
                raise SudoFailed(f"sudo timed out after {timeout_s:.1f} s", cause="timeout") from error
            raise DumpFailed(f"py-spy timed out after {timeout_s:.1f} s", cause="timeout") from error
        except OSError as error:
            raise why_not_started(self.path, error) from error
        if done.returncode:
            raise self._why_failed(pid, done.stderr.decode(errors="replace"))
        try:
            return threads_of(done.stdout)
        except ValueError as error:
            raise DumpFailed("the output of py-spy is malformed", cause="malformed") from error

    def _why_failed(self, pid: int, stderr: str) -> DumpFailed:
        if self._prefix and not stderr.lstrip().startswith("Error:"):  # py-spy was never started
            return SudoFailed(f"sudo does not run py-spy: {last_words(stderr)}", cause="permission")
        return why_dump_failed(pid, stderr)


class SudoFailed(DumpFailed):
    """dstack's user may not run py-spy as root without a password."""
