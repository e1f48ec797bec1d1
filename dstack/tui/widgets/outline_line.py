"""One line of an outline: its text, its children, and how its text is wrapped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from dstack.report.wrapping import wrapped

INDENT = 2
NO_RAIL = (" " * INDENT, " " * INDENT)
MIN_WRAPPED = 16
"""Minimum width of the rows of a wrapped line, in cells."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of an outline, and its children, which a callable makes on demand.

    ``key`` is unique among all lines, and equal after a refresh. ``data`` is what the view needs to know of the line.
    A filter also matches the words in ``search_text``, and each of ``terms``, such as ``rank:3``, only as a whole.
    ``is_open`` is the initial state of the fold. A line takes one row, cut off at the edge, unless it has a
    ``hanging_indent``: then it is wrapped, with that indent in its further rows. A ``layout`` makes the rows for a
    width itself. ``rail`` replaces the last indent: in the first row, and in the further rows and the children.
    """

    key: str
    text: Text
    children: Sequence[Line] | Callable[[], Sequence[Line]] = ()
    is_open: bool = False
    data: object = None
    search_text: str = ""
    terms: frozenset[str] = frozenset()
    hanging_indent: int | None = None
    layout: Callable[[int, Console], Sequence[Text]] | None = None
    rail: tuple[str, str] = NO_RAIL

    @property
    def has_children(self) -> bool:
        """Whether the line has children; true for children that are not made yet."""
        return callable(self.children) or bool(self.children)

    @property
    def is_wrapped(self) -> bool:
        """Whether its rows depend on the width."""
        return self.hanging_indent is not None or self.layout is not None

    def rows(self, width: int, console: Console) -> Sequence[Text]:
        """The rows of its text in so many cells; the outline cuts off wider rows."""
        if self.layout is not None:
            return self.layout(width, console)
        if self.hanging_indent is None or self.text.cell_len <= width:
            return [self.text]
        first, *others = wrapped(self.text, console, max(MIN_WRAPPED, width - self.hanging_indent))
        return [first, *(Text(" " * self.hanging_indent).append_text(row) for row in others)]
