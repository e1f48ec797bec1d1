"""Parts of dstack that run as processes of their own."""

from __future__ import annotations

import sys

_RUN = "import runpy, sys; sys.path[:] = filter(None, sys.path); runpy.run_module({!r}, None, '__main__', True)"


def child_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as ``python -m`` would, but imports nothing from the working directory.

    Whoever debugs a job stands in its folder, where a ``queue.py`` would be taken for the standard library's.
    """
    return [sys.executable, "-c", _RUN.format(module), *arguments]
