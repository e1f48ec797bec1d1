"""Write ``dstack/probes/node/cpython/saved_layouts.py``: ``python -m tests.versions.write_saved_layouts``.

Each supported version of Python under pyenv or in ``/usr/bin`` is calibrated. The fallback for a missing version is a
Debian tree (:mod:`tests.versions.debian_tree`). Patch versions of one minor version must agree. Exits with an error if
a version is missing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT
from tests.versions.compatibility import FROM_DEBIAN, debian_tree, run

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
VARIABLES = (f"PYTHONPATH={ROOT}", "PYTHONDONTWRITEBYTECODE=1")
TABLES = ROOT / "dstack/probes/node/cpython/saved_layouts.py"
CALIBRATE = """
import platform
from dstack.probes.node.cpython.layout import calibrate
print(platform.python_version(), repr(calibrate()), sep="\\n")
"""
HEAD = '''"""CPython's structure offsets by minor version, for targets that run another version than their reader.

Written by ``python -m tests.versions.write_saved_layouts``, which calibrated x86-64 builds with glibc. A test compares
each with the interpreter that runs it. Calibrated versions: {versions}.
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
    versions: list[str] = []
    layouts: list[str] = []
    for version in VERSIONS:
        calibrated = dict(calibration(python) for python in interpreters(version))
        if len(set(calibrated.values())) != 1:
            sys.exit(f"Pythons {version} that are here: {', '.join(calibrated) or 'none'}; they must agree.")
        versions += calibrated
        layouts.append(calibrated.popitem()[1])
    TABLES.write_text(HEAD.format(versions=", ".join(versions)) + "".join(f"{layout},\n" for layout in layouts) + TAIL)
    run(sys.executable, "-m", "ruff", "format", "--quiet", str(TABLES))


def interpreters(version: str) -> list[list[str]]:
    """The commands that run a Python of this version with dstack's code."""
    under_pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")
    pythons = sorted((*under_pyenv, *Path("/usr/bin").glob(f"python{version}")))
    if pythons or version not in FROM_DEBIAN:
        return [["env", *VARIABLES, str(python)] for python in pythons]
    tree = debian_tree(version)
    tree.make()
    return [tree.command(f"python{version}", directory=ROOT, environment=dict(one.split("=") for one in VARIABLES))]


def calibration(python: list[str]) -> tuple[str, str]:
    """Its full version, and the source text of its layout."""
    done = subprocess.run([*python, "-c", CALIBRATE], check=True, capture_output=True, text=True)
    version, layout = done.stdout.splitlines()
    return version, layout


if __name__ == "__main__":
    main()
