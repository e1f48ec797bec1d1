"""Wrapped text in which no row is a single word, for reports and the TUI."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

NARROWEST = 60
"""Rows may be narrower than there is room, down to this share of it in percent, so that no word stands alone."""


def wrapped(text: Text, console: Console, width: int) -> Sequence[Text]:
    """The text in rows of at most ``width`` cells; in somewhat narrower ones where a word would be left alone."""
    best = list(text.wrap(console, width))
    for narrower in range(width - 1, width * NARROWEST // 100, -1):
        if not (lonely := _lonely(best)):
            break
        rows = list(text.wrap(console, narrower))
        if _lonely(rows) < lonely:
            best = rows
    for row in best:
        row.rstrip()
    return best


def _lonely(rows: Sequence[Text]) -> int:
    """How many rows have no more than one word, where there are several rows."""
    return sum(len(row.plain.split()) < 2 for row in rows) if len(rows) > 1 else 0
