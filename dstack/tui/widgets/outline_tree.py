"""The lines of an outline as a tree: which are unfolded, which match the filter, and the rows that they take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


MAX_FILTERED = 50_000
"""The filter reads at most so many lines; it finds none beyond them."""
MAX_INDENTED = 16
"""Lines deeper than this are not indented further: their depth is printed before them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the outline: a whole line, or row ``number``, from 0, of a wrapped line.

    ``indent`` is the text before the line's mark.
    """

    line: Line
    depth: int
    text: Text
    indent: str
    number: int = 0

    @property
    def has_mark(self) -> bool:
        """Whether the row shows the mark that folds and unfolds its line."""
        return self.line.has_children and self.number == 0


class LineTree:
    """The lines, their folds and the filter. Folds are kept by key, so they survive a change of the lines."""

    def __init__(self) -> None:
        self.words: tuple[str, ...] = ()
        self._lines: Sequence[Line] = ()
        self._made: dict[str, Sequence[Line]] = {}
        self._folds: dict[str, bool] = {}

    def replace(self, lines: Sequence[Line]) -> None:
        """Replace all lines."""
        self._lines = lines
        self._made.clear()

    def children_of(self, line: Line) -> Sequence[Line]:
        """The children of a line, made once."""
        if not callable(line.children):
            return line.children
        if line.key not in self._made:
            self._made[line.key] = line.children()
        return self._made[line.key]

    def is_unfolded(self, line: Line) -> bool:
        """Whether the children of the line are shown; a filter unfolds all lines that have not been folded by key."""
        return line.has_children and self._folds.get(line.key, bool(self.words) or line.is_open)

    def fold(self, key: str, *, is_open: bool) -> None:
        """Unfold or fold the line with this key."""
        self._folds[key] = is_open

    def matching(self) -> tuple[set[str], int]:
        """The keys of the lines that a filter shows, and the number of lines that match.

        A line matches if it and its ancestors contain all words. Its ancestors and descendants are shown with it. A
        line without terms has those of its parent.
        """
        keep: set[str] = set()
        found = 0
        parents: dict[str, str | None] = {}
        ahead: list[tuple[Line, tuple[str, ...], frozenset[str], str | None]] = [
            (line, self.words, frozenset(), None) for line in reversed(self._lines)
        ]
        while ahead and len(parents) < MAX_FILTERED:
            line, missing, terms, parent = ahead.pop()
            parents[line.key] = parent
            terms = line.terms or terms
            text = f"{line.text.plain} {line.search_text}".casefold() if missing else ""
            missing = tuple(word for word in missing if word not in text)
            if terms.issuperset(missing):
                found += 1
                _keep_with_ancestors(line.key, parents, keep)
            ahead += [(child, missing, terms, line.key) for child in reversed(self.children_of(line))]
        return keep, found

    def rows(self, width: int, console: Console, keep: set[str] | None = None) -> Iterator[Row]:
        """The rows of all unfolded lines, or of those whose keys are in ``keep``; a width of 0 wraps none of them."""
        ahead = [(line, 0, "") for line in reversed(self._lines)]
        while ahead:
            line, depth, above = ahead.pop()
            if keep is not None and line.key not in keep:
                continue
            yield from _rows_of(line, depth, above, width, console)
            if self.is_unfolded(line):
                indent = _indent(above, depth, line.rail[1])
                ahead += [(child, depth + 1, indent) for child in reversed(self.children_of(line))]


def _keep_with_ancestors(key: str, parents: dict[str, str | None], keep: set[str]) -> None:
    at: str | None = key
    while at is not None and at not in keep:
        keep.add(at)
        at = parents[at]


def _rows_of(line: Line, depth: int, above: str, width: int, console: Console) -> Iterator[Row]:
    """The rows of a line, wrapped to the width beside the indent and the mark."""
    first, further = (_indent(above, depth, rail) for rail in line.rail)
    if depth > MAX_INDENTED:
        first = f"{depth} ".rjust(len(first))
    if not line.is_wrapped or width == 0:
        yield Row(line, depth, line.text, first)
        return
    for number, text in enumerate(line.rows(width - len(first) - INDENT, console)):
        yield Row(line, depth, text, further if number else first, number)


def _indent(above: str, depth: int, rail: str) -> str:
    """The parent's indent, and the rail of this line unless it is a root or too deep."""
    return above + rail if 0 < depth <= MAX_INDENTED else above
