"""dstack's commands as on macOS: ``python tests/versions/other_platform.py``, by its path, so that dstack is installed.

What this installation requires only on Linux cannot be imported, nor ``/proc`` be opened, and Python says that it runs
on macOS. Commands on a file must work, and commands on a cluster say that they do not.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement

DISTRIBUTION = "ray-dstack"
FILE = Path(__file__).parents[1] / "unit/recorded/document-pipeline-ray-2.60.json.gz"
SYSTEM = {"sys_platform": "darwin", "platform_system": "Darwin"}
ON_FILES = (
    ("show", "RUNNING"),
    ("check", "RUNNING"),
    ("stacks", "process"),
    ("graph", "calls"),
    ("timeline", "share"),
    ("report -o page.html", "Saved page.html"),
    ("tui", ""),
)
"""Commands, which get a file, and what they print at least."""
ON_CLUSTERS = ("snapshot", "check", "doctor", "record -o r.html", "profile", "watch --dir w", "demo", "mcp", "tui")
OPENED = ("open", "os.listdir", "os.scandir")


def main() -> None:
    absent = only_on_linux()
    assert {"ray", "grpc", "google", "elftools"} <= absent, absent
    sys.meta_path.insert(0, Absent(absent))
    sys.platform = "darwin"
    sys.addaudithook(without_proc)
    os.environ.update(TEXTUAL_DRIVER="textual.drivers.headless_driver:HeadlessDriver", TEXTUAL_PRESS="3,q")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for command, expected in ON_FILES:
            code, text = outcome([*command.split(), str(FILE)])
            assert code in (0, 1), (command, code, text)
            assert expected in text, (command, text)
            print(f"{command} FILE: works")
        for command in ON_CLUSTERS:
            code, text = outcome(command.split())
            assert code == 3, (command, code, text)
            assert "only on Linux" in text, (command, text)
            print(f"{command}: refused")


def outcome(arguments: Sequence[str]) -> tuple[object, str]:
    """The exit code of a command, and all that it prints."""
    from dstack.cli import main as dstack

    printed = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            dstack(arguments, prog_name="dstack")
        except SystemExit as ended:
            printed.seek(0)
            return ended.code, printed.read()
    raise AssertionError("a command exits")


class Absent:
    """Finds none of these modules."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def without_proc(event: str, arguments: tuple[object, ...]) -> None:
    """Opens nothing below ``/proc``, and finds no functions of Linux's C library."""
    if event in OPENED and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(arguments[0])
    if event == "ctypes.dlsym":
        raise AttributeError(arguments[1])


def only_on_linux() -> set[str]:
    """The modules of all installed distributions that the requirements of dstack do not install on macOS."""
    installed: set[str] = set()
    add_required(Requirement(DISTRIBUTION), installed)
    found = importlib.metadata.packages_distributions()
    return {module for module, homes in found.items() if not {*map(canonical, homes)} & installed}


def add_required(requirement: Requirement, known: set[str]) -> None:
    """Add the distributions that are installed on macOS for a requirement."""
    known.add(canonical(requirement.name))
    for line in importlib.metadata.requires(requirement.name) or ():
        other = Requirement(line)
        is_used = other.marker is None or any(
            other.marker.evaluate({**SYSTEM, "extra": extra}) for extra in ("", *requirement.extras)
        )
        if is_used and canonical(other.name) not in known and is_installed(other.name):
            add_required(other, known)


def is_installed(name: str) -> bool:
    """Whether a distribution is there: what only other platforms need is not."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(name))
    return False


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
