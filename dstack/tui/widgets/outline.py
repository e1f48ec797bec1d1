"""An outline: a tree of lines with a cursor, folds and a filter, of which only the visible rows are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from dstack.report.rich_text import wrapped

INDENT = 2
NO_RAIL = (" " * INDENT, " " * INDENT)
MIN_WRAPPED = 16
"""Minimum width of the rows of a wrapped line, in cells."""
MAX_FILTERED = 50_000
"""The filter reads at most so many lines; it finds none beyond them."""
MAX_INDENTED = 16
"""Lines deeper than this are not indented further: their depth is printed before them."""
MAX_WIDTH = 1_000
GUIDE = Style(dim=True)
CUT = "…"
"""The last cell of a row that is wider than the outline."""


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


@dataclass(frozen=True, slots=True)
class OutlineRow:
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

    def rows(self, width: int, console: Console, keep: set[str] | None = None) -> Iterator[OutlineRow]:
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


def _rows_of(line: Line, depth: int, above: str, width: int, console: Console) -> Iterator[OutlineRow]:
    """The rows of a line, wrapped to the width beside the indent and the mark."""
    first, further = (_indent(above, depth, rail) for rail in line.rail)
    if depth > MAX_INDENTED:
        first = f"{depth} ".rjust(len(first))
    if not line.is_wrapped or width == 0:
        yield OutlineRow(line, depth, line.text, first)
        return
    for number, text in enumerate(line.rows(width - len(first) - INDENT, console)):
        yield OutlineRow(line, depth, text, further if number else first, number)


def _indent(above: str, depth: int, rail: str) -> str:
    """The parent's indent, and the rail of this line unless it is a root or too deep."""
    return above + rail if 0 < depth <= MAX_INDENTED else above


class Outline(ScrollView, can_focus=True):
    """Lines that unfold. The cursor, the folds and the scroll offset survive a change of the lines.

    The scrollbar's columns are always reserved, so the width of the text is the same with and without a scrollbar.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="outline.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="outline.down"),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False, id="outline.page-up"),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False, id="outline.page-down"),
        Binding("home,g", "first", "First", show=False, id="outline.first"),
        Binding("end,G", "last", "Last", show=False, id="outline.last"),
        Binding("right", "unfold", "Unfold", show=False, id="outline.unfold"),
        Binding("left", "fold", "Fold", show=False, id="outline.fold"),
        Binding("enter", "choose", "Choose", show=False, id="outline.choose"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"outline--cursor", "outline--found"}
    DEFAULT_CSS = """
    Outline { height: 1fr; scrollbar-gutter: stable; }
    Outline > .outline--cursor { background: $block-cursor-blurred-background; text-style: bold; }
    Outline:focus > .outline--cursor {
        background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold;
    }
    Outline > .outline--found { background: $warning-muted; color: $foreground; text-style: underline; }
    """

    @dataclass
    class Highlighted(Message):
        """The cursor moved to a line, or no line is left."""

        outline: Outline
        line: Line | None

        @property
        def control(self) -> Outline:
            """The outline that posted the message."""
            return self.outline

    @dataclass
    class Chosen(Message):
        """Enter was pressed on a line, or the line was double-clicked."""

        outline: Outline
        line: Line

        @property
        def control(self) -> Outline:
            """The outline that posted the message."""
            return self.outline

    def __init__(self, *, id: str | None = None, empty: str = "Nothing to show.") -> None:
        super().__init__(id=id)
        self._empty = empty
        self._tree = LineTree()
        self._rows: list[OutlineRow] = []
        self._cursor = 0
        self._was_shown = False
        self._wrapped_at = 0

    # Lines and rows

    def show(self, lines: Sequence[Line]) -> None:
        """Replace all lines; folds and the cursor stay with the lines of the same keys."""
        self._tree.replace(lines)
        self._was_shown = True
        self._arrange()

    def filter(self, text: str) -> int:
        """Show only lines that contain all words, with their ancestors and descendants; return how many match."""
        self._tree.words = tuple(text.casefold().split())
        return self._arrange()

    @property
    def cursor_line(self) -> Line | None:
        """The line under the cursor."""
        return self._rows[self._cursor].line if self._rows else None

    @property
    def visible_lines(self) -> Iterator[tuple[int, Line]]:
        """All unfolded lines, with their depths."""
        return ((row.depth, row.line) for row in self._rows if row.number == 0)

    def as_text(self) -> str:
        """All unfolded lines as plain text, wrapped as on the screen."""
        return "\n".join(row.indent + row.text.plain for row in self._rows)

    def row_of(self, key: str) -> int | None:
        """The index of the first row of the line with this key; None if that line is not unfolded."""
        return next((at for at, row in enumerate(self._rows) if row.line.key == key), None)

    def reveal(self, path: Sequence[str]) -> bool:
        """Unfold the lines with these keys, from the root down, and select the last; false if it does not exist."""
        if not path:
            return False
        for key in path[:-1]:
            self._tree.fold(key, is_open=True)
        self._arrange()
        index = self.row_of(path[-1])
        if index is None:
            return False
        self._select(index)
        self.scroll_to_cursor(center=True)
        return True

    def on_resize(self) -> None:
        """Wrap the lines again if the width has changed."""
        if self._wrapped_at != self.scrollable_size.width and any(row.line.is_wrapped for row in self._rows):
            self._arrange()
            self.scroll_to_cursor()

    def _arrange(self) -> int:
        """Compute all rows, keep the cursor on its line or near it, and return the number of matching lines."""
        before = self._rows[self._cursor] if self._rows else None
        self._wrapped_at = self.scrollable_size.width
        keep, found = self._tree.matching() if self._tree.words else (None, 0)
        self._rows = list(self._tree.rows(self._wrapped_at, self.app.console, keep))
        self._cursor = self._row_again(before)
        width = max((row.text.cell_len + len(row.indent) + INDENT for row in self._rows[:MAX_FILTERED]), default=1)
        self.virtual_size = Size(min(width, MAX_WIDTH), max(1, len(self._rows)))
        self.refresh()
        if self.is_attached and (before is None or self.cursor_line != before.line):
            self.post_message(self.Highlighted(self, self.cursor_line))
        return found

    def _row_again(self, before: OutlineRow | None) -> int:
        """The new index of the row under the cursor, whose line may have been wrapped anew or removed."""
        own = [at for at, row in enumerate(self._rows) if before and row.line.key == before.line.key]
        if before and own:
            return own[min(before.number, len(own) - 1)]
        return min(self._cursor, max(0, len(self._rows) - 1))

    # Drawing

    def render_line(self, y: int) -> Strip:
        at = y + self.scroll_offset.y
        is_cursor = at == self._cursor and bool(self._rows)
        style = self.rich_style
        if is_cursor:
            style += self.get_component_rich_style("outline--cursor", partial=True)
        text = self._text_at(at, y)
        segments = [
            Segment(segment.text, style + (_without_colours(segment.style) if is_cursor else segment.style or Style()))
            for segment in text.render(self.app.console)
        ]
        scrollbar = self.scrollbar_size_vertical if self.show_vertical_scrollbar else 0
        offset, width = self.scroll_offset.x, self.size.width - scrollbar
        strip = Strip(segments, text.cell_len).crop_extend(offset, offset + width, style)
        if text.cell_len > offset + width:
            strip = Strip([*strip.crop(0, width - 1), Segment(CUT, style)], width)
        return strip.extend_cell_length(self.size.width, style)

    def _text_at(self, at: int, y: int) -> Text:
        if at < len(self._rows):
            return self._text_of(self._rows[at])
        is_empty = self._was_shown and not self._rows and y == 0
        return Text(("No line contains these words." if self._tree.words else self._empty) if is_empty else "", end="")

    def _text_of(self, row: OutlineRow) -> Text:
        mark = ("▾ " if self._tree.is_unfolded(row.line) else "▸ ") if row.has_mark else "  "
        text = Text(no_wrap=True, end="").append(row.indent + mark, GUIDE)
        own = row.text.copy()
        own.end = ""
        if self._tree.words:
            own.highlight_words(
                self._tree.words, self.get_component_rich_style("outline--found", partial=True), case_sensitive=False
            )
        return text.append_text(own)

    # Keys and clicks

    def _select(self, index: int) -> None:
        if not self._rows:
            return
        index = max(0, min(index, len(self._rows) - 1))
        if index == self._cursor:
            return
        self._cursor = index
        self.refresh()
        self.scroll_to_cursor()
        self.post_message(self.Highlighted(self, self.cursor_line))

    def scroll_to_cursor(self, *, center: bool = False) -> None:
        """Scroll until the cursor's row is on the screen."""
        region = Region(self.scroll_offset.x, self._cursor, 1, 1)
        self.scroll_to_region(region, animate=False, center=center, force=True)

    def action_move(self, count: int) -> None:
        self._select(self._cursor + count)

    def action_page(self, count: int) -> None:
        self._select(self._cursor + count * max(1, self.scrollable_size.height - 1))

    def action_first(self) -> None:
        self._select(0)

    def action_last(self) -> None:
        self._select(len(self._rows) - 1)

    def action_unfold(self) -> None:
        """Unfold the line, or move to its first child."""
        line = self.cursor_line
        if line is None or not line.has_children:
            return
        if self._tree.is_unfolded(line):
            self._select(self._cursor + 1)
        else:
            self._fold(line, is_open=True)

    def action_fold(self) -> None:
        """Fold the line, or move to its parent."""
        line = self.cursor_line
        if line is None:
            return
        if self._tree.is_unfolded(line):
            self._fold(line, is_open=False)
            return
        depth = self._rows[self._cursor].depth
        parent = next((at for at in range(self._cursor, -1, -1) if self._rows[at].depth < depth), None)
        if parent is not None:
            self._select(parent)

    def action_choose(self) -> None:
        if self.cursor_line is not None:
            self.post_message(self.Chosen(self, self.cursor_line))

    def toggle(self, line: Line) -> None:
        """Fold or unfold a line."""
        if line.has_children:
            self._fold(line, is_open=not self._tree.is_unfolded(line))

    def _fold(self, line: Line, *, is_open: bool) -> None:
        self._tree.fold(line.key, is_open=is_open)
        self._arrange()
        self.scroll_to_cursor()

    def on_click(self, event: events.Click) -> None:
        """Select the clicked line, fold it on a click on its mark, and choose it on a double click."""
        index = event.y + self.scroll_offset.y
        if index >= len(self._rows):
            return
        self._select(index)
        row = self._rows[index]
        mark = len(row.indent) - self.scroll_offset.x
        if event.chain == 2:
            self.action_choose()
        elif row.has_mark and mark <= event.x < mark + INDENT:
            self.toggle(row.line)


def _without_colours(style: Style | str | None) -> Style:
    """The style without colours, for the row under the cursor, which has its own; bold and underline stay."""
    return Style(bold=style.bold, underline=style.underline) if isinstance(style, Style) else Style()


class Detail(VerticalScroll):
    """A few wrapped sentences; the mouse, or Tab and the keys of an outline, scroll to what does not fit."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", "Up", show=False, id="detail.up"),
        Binding("j", "scroll_down", "Down", show=False, id="detail.down"),
        Binding("g", "scroll_home", "First", show=False, id="detail.first"),
        Binding("G", "scroll_end", "Last", show=False, id="detail.last"),
    ]
    DEFAULT_CSS = """
    Detail {
        height: 8; max-height: 35%; padding: 0 1; scrollbar-gutter: stable;
        border-top: solid $primary-muted; background: $surface;
    }
    Detail:focus { border-top: solid $accent; }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.text = Text()
        self._lines: tuple[Text, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static()

    def show(self, lines: Iterable[Text]) -> None:
        """Replace the lines, and scroll to the first."""
        self._lines = tuple(lines)
        self.text = Text("\n").join(self._lines)
        self._wrap()
        self.scroll_home(animate=False)

    def on_resize(self) -> None:
        self._wrap()

    def _wrap(self) -> None:
        width = self.scrollable_content_region.width
        rows = [row for line in self._lines for row in wrapped(line, self.app.console, width)] if width else self._lines
        self.query_one(Static).update(Text("\n").join(rows))
