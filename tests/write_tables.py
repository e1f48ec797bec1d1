"""Writes ``dstack/probes/node/cpython/saved_layouts.py``: ``python -m tests.write_tables``.

Every Python of a version that dstack reads, under pyenv or in ``/usr/bin``, calibrates itself, else one in a Debian
tree (:mod:`tests.chroot`). Those of one minor version must agree. Ends with an error where a version is missing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.compatibility import IN_CHROOT, ROOT, chroot, run

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
VARIABLES = (f"PYTHONPATH={ROOT}", "PYTHONDONTWRITEBYTECODE=1")
TABLES = ROOT / "dstack/probes/node/cpython/saved_layouts.py"
CALIBRATE = """
import platform
from dstack.probes.node.cpython.layout import calibrate
print(platform.python_version(), repr(calibrate()), sep="\\n")
"""
HEAD = '''"""Where each minor version of CPython keeps what, for processes that run another one than their reader.

Written by ``python -m tests.write_tables``; a test holds each against the interpreter that runs it. As calibrated on
x86-64 with glibc by {seen}.
"""

from __future__ import annotations

from dstack.probes.node.cpython.coroutine_layout import CoroutineLayout
from dstack.probes.node.cpython.layout import Layout
from dstack.probes.node.cpython.task_lists import TaskLists

_TABLES = (
'''
TAIL = """
)
TABLES = {table.version: table for table in _TABLES}
"""


def main() -> None:
    seen: list[str] = []
    layouts: list[str] = []
    for version in VERSIONS:
        calibrated = dict(calibration(python) for python in interpreters(version))
        if len(set(calibrated.values())) != 1:
            sys.exit(f"Pythons {version} that are here: {', '.join(calibrated) or 'none'}; they must agree.")
        seen += calibrated
        layouts.append(calibrated.popitem()[1])
    TABLES.write_text(HEAD.format(seen=", ".join(seen)) + "".join(f"{layout},\n" for layout in layouts) + TAIL)
    run(sys.executable, "-m", "ruff", "format", "--quiet", str(TABLES))


def interpreters(version: str) -> list[list[str]]:
    """The commands that run a Python of this version with dstack's code."""
    under_pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
    pythons = sorted((*under_pyenv, *Path("/usr/bin").glob(f"python{version}")))
    if pythons or version not in IN_CHROOT:
        return [["env", *VARIABLES, str(python)] for python in pythons]
    tree = chroot(version)
    tree.make()
    return [tree.command(f"python{version}", directory=ROOT, environment=dict(one.split("=") for one in VARIABLES))]


def calibration(python: list[str]) -> tuple[str, str]:
    """Its full version, and its layout as it stands in the tables."""
    told = subprocess.run([*python, "-c", CALIBRATE], check=True, capture_output=True, text=True)
    version, layout = told.stdout.splitlines()
    return version, layout


if __name__ == "__main__":
    main()
