"""The terminal UI of a source of snapshots. It contains no analysis; only this package imports Textual."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Sequence

from dstack.processes.signals import end, end_on_signals, ending_signals
from dstack.tui.snapshot_sources import OpenedRecording, Source


def run(source: Source, recordings: Sequence[OpenedRecording] = ()) -> int | None:
    """Show snapshots and recordings until the user quits or a signal arrives; return the signal's number.

    The terminal is restored before the return. A second signal ends the process immediately.
    """
    from dstack.processes.gc_pause import collect_old_rarely
    from dstack.tui.app import DstackApp

    collect_old_rarely()
    app = DstackApp(source, recordings)

    def leave(number: int) -> None:
        end_on_signals()
        if number == getattr(signal, "SIGHUP", None):
            end(number)  # the terminal is gone: a driver that restores it would wait for ever
        app.exit(number)

    async def run_app() -> int | None:
        for number in ending_signals():
            with contextlib.suppress(NotImplementedError):  # on Windows
                asyncio.get_running_loop().add_signal_handler(number, leave, number)
        return await app.run_async()

    return asyncio.run(run_app())
