"""The terminal UI. It is handed a source of snapshots and owns no logic; only this package imports Textual."""

from __future__ import annotations

import asyncio

from dstack.signals import end_on_signals, ending_signals
from dstack.tui.source import Source


def run(source: Source) -> int | None:
    """Shows what the source gives until one leaves, or a signal comes, whose number is given back.

    The terminal is given back first. A second signal ends the process where it stands.
    """
    from dstack.tui.app import DstackApp

    app = DstackApp(source)

    def leave(number: int) -> None:
        end_on_signals()
        app.exit(number)

    async def shown() -> int | None:
        for number in ending_signals():
            asyncio.get_running_loop().add_signal_handler(number, leave, number)
        return await app.run_async()

    return asyncio.run(shown())
