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


@dataclass(frozen=True)
class Line:
    """One line of an outline, and its children, which a callable makes on demand.

    ``key`` is unique among all lines, and equal after a refresh. ``data`` is what the view needs to know of the line.
    A filter also matches the words in ``also``, and each of ``terms``, such as ``rank:3``, only as a whole.
    ``is_open`` is the initial state of the fold. A line takes one row, cut off at the edge, unless it has a ``hang``:
    then it is wrapped, and its further rows are indented by so many cells. A ``layout`` makes the rows for a width
    itself. ``rail`` replaces the last indent: in the first row, and in all further rows of the line and its children.
    """

    key: str
    text: Text
    children: Sequence[Line] | Callable[[], Sequence[Line]] = ()
    is_open: bool = False
    data: object = None
    also: str = ""
    terms: frozenset[str] = frozenset()
    hang: int | None = None
    layout: Callable[[int, Console], Sequence[Text]] | None = None
    rail: tuple[str, str] = NO_RAIL

    @property
    def has_children(self) -> bool:
        """Whether the line has children; true for children that are not made yet."""
        return callable(self.children) or bool(self.children)

    @property
    def is_wrapped(self) -> bool:
        """Whether its rows depend on the width."""
        return self.hang is not None or self.layout is not None

    def rows(self, width: int, console: Console) -> Sequence[Text]:
        """The rows of its text in so many cells; the outline cuts off wider rows."""
        if self.layout is not None:
            return self.layout(width, console)
        if self.hang is None or self.text.cell_len <= width:
            return [self.text]
        first, *others = wrapped(self.text, console, max(MIN_WRAPPED, width - self.hang))
        return [first, *(Text(" " * self.hang).append_text(row) for row in others)]
