"""The files of a program: its script, and the modules of the user's that it imports, directly or not.

Modules are found where Python finds them: in the folder of the script, and in those of ``PYTHONPATH``. Installed
packages and the standard library are never read, nor is anything but a file with the name of a program.
"""

from __future__ import annotations

import ast
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dstack.probes.node.outlines.source_modules import SourceModule
from dstack.probes.node.procfs import proc
from dstack.probes.node.stacks.origins import PACKAGES, STANDARD
from dstack.probes.node.stacks.source_files import MAX_BYTES, find_source, read_source

MAX_FILES, MAX_PROGRAM_BYTES, MAX_S = 200, 4 << 20, 0.5
"""The most that is read of one program, and the CPU time for it, which is also that for the walk of its functions."""
MAX_WORDS = 64
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of Python that another word follows."""
ROOTS, MAX_FOLDERS = (".git", "pyproject.toml", "setup.cfg", "pytest.ini", "tox.ini"), 16
"""What the root of a project has, and how far it is searched for."""
NO_SCRIPT = "the script of the driver is no file of the user's"


class Unread(Exception):
    """Why the files of a program were not all read, as a sentence."""


@dataclass(frozen=True)
class Script:
    """A program's script, and the folders in which it finds its modules; ``module`` is its name with ``-m``."""

    path: str
    folders: tuple[str, ...]
    module: str


def script_of(pid: int) -> Script:
    """The script that a process runs. Raises :class:`Unread`."""
    words, cwd = proc.command(pid, MAX_WORDS), proc.working_directory(pid)
    if not words:
        raise Unread("the command line of the driver could not be read")
    set_folders = proc.variable(pid, "PYTHONPATH").split(":")
    folders = [os.path.normpath(os.path.join(cwd, one)) for one in set_folders if one]
    kind, name = _program(words[1:])
    if kind == "module":
        found = _file_of(name, [cwd, *folders])
        if not found:
            raise Unread(NO_SCRIPT)
        is_package = os.path.basename(found) == "__init__.py"
        main = os.path.join(os.path.dirname(found), "__main__.py") if is_package else found
        return Script(main, (cwd, *folders), f"{name}.__main__" if is_package else name)
    path = find_source(os.path.join(cwd, name)) if name else None
    if not path or not is_users(path):
        raise Unread(NO_SCRIPT)
    return Script(path, (os.path.dirname(path), *folders), os.path.basename(path).rpartition(".")[0])


def _program(words: Sequence[str]) -> tuple[str, str]:
    """What Python is to run: a "script" or a "module" by its name, else an empty name."""
    waiting = iter(words)
    for word in waiting:
        if word in ("-m", "-c"):
            return ("module", next(waiting, "")) if word == "-m" else ("script", "")
        if word in WITH_VALUE:
            next(waiting, None)
        elif not word.startswith("-"):
            return "script", word
    return "script", ""


def is_users(path: str) -> bool:
    """Whether a file is the user's own, and not installed."""
    return not PACKAGES.search(path) and not STANDARD.match(path)


def _file_of(module: str, folders: Iterable[str]) -> str | None:
    place = module.replace(".", "/")
    for folder in folders:
        for path in (f"{folder}/{place}.py", f"{folder}/{place}/__init__.py"):
            if os.path.isfile(path) and is_users(path):
                return path
    return None


def folder_and_name(path: str) -> tuple[str, str]:
    """The folder from which a file is imported, and the name of its module: packages have an ``__init__.py``."""
    folder, file = os.path.split(path)
    names = [] if file == "__init__.py" else [file.rpartition(".")[0]]
    while os.path.isfile(f"{folder}/__init__.py") and len(names) < 32:
        folder, package = os.path.split(folder)
        names.insert(0, package)
    return folder, ".".join(names)


def conftests_of(path: str) -> Iterator[str]:
    """The files with fixtures for the tests of a file, the nearest one first, up to the root of the project."""
    folder = os.path.dirname(path)
    for _ in range(MAX_FOLDERS):
        if os.path.isfile(conftest := f"{folder}/conftest.py"):
            yield conftest
        if any(os.path.exists(f"{folder}/{name}") for name in ROOTS) or folder == os.path.dirname(folder):
            return
        folder = os.path.dirname(folder)


@dataclass
class ProgramFiles:
    """Reads the files of a program, within bounds; ``problems`` are the reasons why others were not read."""

    folders: Sequence[str]
    deadline: float = field(default_factory=lambda: time.thread_time() + MAX_S)
    modules: dict[str, SourceModule] = field(default_factory=dict)
    problems: dict[str, None] = field(default_factory=dict)
    _bytes: int = 0

    def read(self, files: Iterable[tuple[str, str]], *, main: str = "") -> None:
        """Read files with the names of their modules, then what they import; ``main`` is the one that is the script."""
        waiting = [*files]
        while waiting:
            path, name = waiting.pop(0)
            module = None if path in self.modules else self._parsed(path, name, is_main=path == main)
            if module is not None:
                self.modules[path] = module
                found = ((_file_of(one, self.folders), one) for one in imports_of(module))
                waiting += [(file, one) for file, one in found if file]

    def _parsed(self, path: str, name: str, *, is_main: bool) -> SourceModule | None:
        if len(self.modules) >= MAX_FILES or self._bytes > MAX_PROGRAM_BYTES:
            self.problems["the program has more files than are read"] = None
            return None
        if time.thread_time() > self.deadline:
            self.problems["reading the files of the program took too long"] = None
            return None
        lines = read_source(path)
        text = "\n".join(lines)
        self._bytes += len(text)
        if not text and (not os.access(path, os.R_OK) or _is_large(path)):
            self.problems[f"{path} could not be read"] = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return SourceModule(path, name, lines, ast.parse(text), is_main=is_main)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.problems[f"{path} could not be parsed"] = None
            return None


def _is_large(path: str) -> bool:
    try:
        return os.stat(path).st_size > MAX_BYTES
    except OSError:
        return True


def imports_of(module: SourceModule) -> Iterator[str]:
    """The names of the modules that a file may import, also within functions; some may be no modules."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            start = module.start_of(node)
            yield from _with_packages(start)
            yield from (f"{start}.{alias.name}" if start else alias.name for alias in node.names)


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".") if name else []
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])
