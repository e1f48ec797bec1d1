"""Write ``dstack/probes/node/cpython/saved_layouts.py``: ``python -m tests.versions.write_saved_layouts``.

Each supported version of Python under pyenv or in ``/usr/bin`` is calibrated. The fallback for a missing version is a
Debian tree (:mod:`tests.versions.debian_tree`). Patch versions of one minor version must agree. Exits with an error if
a version is missing.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from dstack.probes.node.cpython.coroutine_layout import CoroutineLayout
from dstack.probes.node.cpython.layout import Layout
from dstack.probes.node.cpython.task_lists import TaskLists
from tests.paths import ROOT
from tests.versions.compatibility import FROM_DEBIAN, debian_tree, run

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
VARIABLES = (f"PYTHONPATH={ROOT}", "PYTHONDONTWRITEBYTECODE=1")
TABLES = ROOT / "dstack/probes/node/cpython/saved_layouts.py"
TYPES: dict[str, type] = {one.__name__: one for one in (Layout, CoroutineLayout, TaskLists)}
CALIBRATE = """
import platform
from dstack.probes.node.cpython.layout import calibrate
print(platform.python_version(), repr(calibrate()), sep="\\n")
"""
MODULE = '''"""CPython's structure offsets by minor version, for targets that run another version than their reader.

Written by ``python -m tests.versions.write_saved_layouts``, which calibrated x86-64 builds with glibc. A test compares
each with the interpreter that runs it. Calibrated versions: {versions}.
"""

from __future__ import annotations

from typing import Any

from dstack.probes.node.cpython.coroutine_layout import CoroutineLayout
from dstack.probes.node.cpython.layout import Layout
from dstack.probes.node.cpython.task_lists import TaskLists

# A row for each field of a layout, with a column for each version.
_LAYOUT: dict[str, tuple[Any, ...]] = {{
{layout}
}}
_COROUTINES: dict[str, tuple[Any, ...]] = {{
{coroutines}
}}


def _column(rows: dict[str, tuple[Any, ...]], index: int) -> dict[str, Any]:
    return {{field: row[index] for field, row in rows.items()}}


TABLES = {{
    version: Layout(coroutines=CoroutineLayout(**_column(_COROUTINES, index)), **_column(_LAYOUT, index))
    for index, version in enumerate(_LAYOUT["version"])
}}
'''


def main() -> None:
    versions: list[str] = []
    layouts: list[Layout] = []
    for version in VERSIONS:
        calibrated = dict(calibration(python) for python in interpreters(version))
        if len(set(calibrated.values())) != 1:
            sys.exit(f"Pythons {version} that are here: {', '.join(calibrated) or 'none'}; they must agree.")
        versions += calibrated
        layouts.append(eval(calibrated.popitem()[1], TYPES))
    write(versions, layouts)


def write(versions: Sequence[str], layouts: Sequence[Layout]) -> None:
    """Write the module that has these layouts."""
    coroutines = "\n".join(rows([layout.coroutines for layout in layouts]))
    layout = "\n".join(rows(layouts))
    TABLES.write_text(MODULE.format(versions=", ".join(versions), layout=layout, coroutines=coroutines))
    run(sys.executable, "-m", "ruff", "format", "--quiet", str(TABLES))


def rows(layouts: Sequence[Layout] | Sequence[CoroutineLayout]) -> Iterator[str]:
    """One line for each field, without the field of the other table."""
    for field in fields(layouts[0]):
        if field.name != "coroutines":
            yield f'"{field.name}": {tuple(getattr(layout, field.name) for layout in layouts)!r},'


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
