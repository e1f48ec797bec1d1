"""The ``dstack`` command, also as ``python -m dstack``. Heeds signals first of all, then loads the rest."""

from __future__ import annotations

import time

BEGAN = time.monotonic()
"""When the command began: its time limits count from here."""
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> None:
    """Runs the command."""
    try:
        from dstack.processes.gc_pause import GcPause
        from dstack.processes.signals import end_on_signals

        end_on_signals()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    with GcPause():
        from dstack.cli import main as command

    try:
        command(prog_name="dstack", obj=BEGAN)
    except SystemExit as ended:
        _end_at_once(ended)


def _end_at_once(ended: SystemExit) -> NoReturn:
    """Ends without taking apart all that was loaded, which takes 30 ms.

    Output that cannot be written is left for Python to report; a profiler or debugger gets the usual end.
    """
    import os
    import sys

    if not isinstance(ended.code, int) or sys.getprofile() or sys.gettrace():
        raise ended
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # also where they are closed, or were never open
        raise ended from None
    os._exit(ended.code)


if __name__ == "__main__":
    main()
