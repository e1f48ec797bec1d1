"""The lines below an outline that tell all of what its cursor is on."""

from __future__ import annotations

from collections.abc import Iterable

from rich.text import Text
from textual.widgets import Static


class Detail(Static):
    """A few sentences, wrapped; what does not fit can be scrolled to with the mouse."""

    DEFAULT_CSS = """
    Detail {
        height: 8; max-height: 35%; padding: 0 1; overflow-y: auto;
        border-top: solid $primary-muted; background: $surface;
    }
    """

    def tell(self, lines: Iterable[Text]) -> None:
        """Shows these lines in the place of those before."""
        self.update(Text("\n").join(lines))
