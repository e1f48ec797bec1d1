"""The terminal UI. It is handed a source of snapshots and owns no logic; only this package imports Textual."""

from __future__ import annotations

from dstack.tui.source import Source


def run(source: Source) -> None:
    """Shows what the source gives until one leaves."""
    from dstack.tui.app import DstackApp

    DstackApp(source).run()
