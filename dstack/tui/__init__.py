"""The terminal UI of a source of snapshots. It contains no analysis; only this package imports Textual."""

from __future__ import annotations

import asyncio

from dstack.signals import end_on_signals, ending_signals
from dstack.tui.source import Source


def run(source: Source) -> int | None:
    """Show the snapshots of the source until the user quits or a signal arrives; return the signal's number.

    The terminal is restored before the return. A second signal ends the process immediately.
    """
    from dstack.tui.app import DstackApp

    app = DstackApp(source)

    def leave(number: int) -> None:
        end_on_signals()
        app.exit(number)

    async def run_app() -> int | None:
        for number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, leave, number)
        return await app.run_async()

    return asyncio.run(run_app())
