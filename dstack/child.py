"""Parts of dstack that run as processes of their own."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``."""

_RUN = "import runpy, sys; sys.path[:] = filter(None, sys.path); runpy.run_module({!r}, None, '__main__', True)"


def child_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as ``python -m`` would, but imports nothing from the working directory.

    Whoever debugs a job stands in its folder, where a ``queue.py`` would be taken for the standard library's.
    """
    return [sys.executable, "-c", _RUN.format(module), *arguments]


def die_with(parent: int) -> None:
    """Has the kernel kill this process when the thread that started it ends, or when ``parent`` has ended already.

    It needs nothing of this process, which may hang in C and let no Python run.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undoes :func:`die_with`, for who has something to end in order."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
