"""A tree of very many lines, of which only those on the screen are ever drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dstack.report.wrapping import wrapped

MAX_FILTERED = 50_000
"""So many lines are looked at for a filter; what is deeper in the tree than these is not found."""
MAX_WIDTH = 1_000
INDENT = 2
NO_RAIL = (" " * INDENT, " " * INDENT)
MAX_INDENTED = 16
"""What is deeper is not moved in any further: its depth stands before it as a number."""
MIN_WRAPPED = 16
"""Rows of a wrapped line are never narrower than this, in cells."""


@dataclass(frozen=True)
class Line:
    """One line of an outline and those below it, which may be made only when they are asked for.

    ``key`` is unique among all lines and the same after a refresh. ``data`` is what the view wants to find with it,
    ``also`` further words that a filter looks for, and ``terms`` words as ``rank:3`` that it finds only whole.
    ``is_open`` says whether its children show at first. A line takes one row, and is cut off at the edge, unless it has
    a ``hang``: then the outline wraps it, and indents the rows after the first by so many cells. A ``layout`` makes
    the rows of a line for a width itself. ``rail`` takes the place of the last indent: in the first row, and in all
    rows below that belong to the line or its children.
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
        """Whether there is anything below it; what is not made yet counts as something."""
        return callable(self.children) or bool(self.children)

    @property
    def is_wrapped(self) -> bool:
        """Whether its rows depend on the width."""
        return self.hang is not None or self.layout is not None

    def rows(self, width: int, console: Console) -> Sequence[Text]:
        """The rows of its text in so many cells; the outline cuts off what is wider."""
        if self.layout is not None:
            return self.layout(width, console)
        if self.hang is None or self.text.cell_len <= width:
            return [self.text]
        first, *others = wrapped(self.text, console, max(MIN_WRAPPED, width - self.hang))
        return [first, *(Text(" " * self.hang).append_text(one) for one in others)]


@dataclass(frozen=True)
class _Row:
    """One row of the screen: all of a line, or the part of a wrapped line that has this ``number``, from 0.

    ``indent`` are the cells before the line's mark.
    """

    line: Line
    depth: int
    text: Text
    indent: str
    number: int = 0

    @property
    def has_mark(self) -> bool:
        """Whether the mark that folds and unfolds the line stands in this row."""
        return self.line.has_children and self.number == 0


class Outline(ScrollView, can_focus=True):
    """Lines that unfold. The cursor, what is unfolded and the scroll stay where they were when the lines change.

    The scrollbar's columns are always reserved, so the width of the text is the same with and without a scrollbar.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False, id="outline.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="outline.down"),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False, id="outline.page-up"),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False, id="outline.page-down"),
        Binding("home,g", "first", "First", show=False, id="outline.first"),
        Binding("end,G", "last", "Last", show=False, id="outline.last"),
        Binding("right,l", "unfold", "Unfold", show=False, id="outline.unfold"),
        Binding("left,h", "fold", "Fold", show=False, id="outline.fold"),
        Binding("enter", "choose", "Choose", show=False, id="outline.choose"),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"outline--cursor", "outline--guide", "outline--found"}
    DEFAULT_CSS = """
    Outline { height: 1fr; scrollbar-gutter: stable; }
    Outline > .outline--cursor { background: $block-cursor-blurred-background; text-style: bold; }
    Outline:focus > .outline--cursor {
        background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold;
    }
    Outline > .outline--guide { color: $text-muted; }
    Outline > .outline--found { background: $warning-muted; color: $text; text-style: underline; }
    """

    class Highlighted(Message):
        """The cursor has come to a line, or there is none any more."""

        def __init__(self, outline: Outline, line: Line | None) -> None:
            super().__init__()
            self.outline = outline
            self.line = line

        @property
        def control(self) -> Outline:
            """The outline it happened in."""
            return self.outline

    class Chosen(Message):
        """Enter was pressed on a line, or it was clicked twice."""

        def __init__(self, outline: Outline, line: Line) -> None:
            super().__init__()
            self.outline = outline
            self.line = line

        @property
        def control(self) -> Outline:
            """The outline it happened in."""
            return self.outline

    def __init__(self, *, id: str | None = None, empty: str = "Nothing to show.") -> None:
        super().__init__(id=id)
        self._empty = empty
        self._lines: Sequence[Line] = ()
        self._made: dict[str, Sequence[Line]] = {}
        self._opened: dict[str, bool] = {}
        self._rows: list[_Row] = []
        self._cursor = 0
        self._words: tuple[str, ...] = ()
        self._was_shown = False
        self._wrapped_at = 0

    # What is shown

    def show(self, lines: Sequence[Line]) -> None:
        """Shows other lines; those with the same keys stay folded or unfolded, and the cursor stays with its own."""
        self._lines = lines
        self._was_shown = True
        self._made.clear()
        self._arrange()

    def filter(self, text: str) -> int:
        """Shows only lines in which, or in those above or below, all the words are; returns how many have them."""
        self._words = tuple(text.casefold().split())
        return self._arrange()

    @property
    def cursor_line(self) -> Line | None:
        """The line that the cursor is on."""
        return self._rows[self._cursor].line if self._rows else None

    @property
    def visible_lines(self) -> Iterator[tuple[int, Line]]:
        """All lines that are unfolded, with their depth."""
        return ((row.depth, row.line) for row in self._rows if row.number == 0)

    def as_text(self) -> str:
        """What is unfolded, as plain text, wrapped as on the screen."""
        return "\n".join(row.indent + row.text.plain for row in self._rows)

    def row_of(self, key: str) -> int | None:
        """The first row of the line with this key, counted from the top of all rows; None where it is not unfolded."""
        return next((at for at, row in enumerate(self._rows) if row.line.key == key), None)

    def reveal(self, path: Sequence[str]) -> bool:
        """Unfolds the lines with these keys, each below the one before, and goes to the last; false without that."""
        if not path:
            return False
        for key in path[:-1]:
            self._opened[key] = True
        self._arrange()
        index = self.row_of(path[-1])
        if index is None:
            return False
        self._go(index)
        self.scroll_to_cursor(center=True)
        return True

    def on_resize(self) -> None:
        """Wraps the lines again where there is more or less room."""
        if self._wrapped_at != self.scrollable_size.width and any(row.line.is_wrapped for row in self._rows):
            self._arrange()
            self.scroll_to_cursor()

    def _arrange(self) -> int:
        """Works out the rows anew, and finds the cursor's line, or the nearest that is left, again."""
        before = self._rows[self._cursor] if self._rows else None
        found = 0
        self._wrapped_at = self.scrollable_size.width
        if self._words:
            keep, found = self._matching()
            self._rows = list(self._filtered_rows(keep))
        else:
            self._rows = list(self._unfolded_rows())
        self._cursor = self._row_again(before)
        width = max((row.text.cell_len + len(row.indent) + INDENT for row in self._rows[:MAX_FILTERED]), default=1)
        self.virtual_size = Size(min(width, MAX_WIDTH), max(1, len(self._rows)))
        self.refresh()
        if self.is_attached and (before is None or self.cursor_line != before.line):
            self.post_message(self.Highlighted(self, self.cursor_line))
        return found

    def _row_again(self, before: _Row | None) -> int:
        """The row in which the cursor is after its line has moved, perhaps also been wrapped otherwise."""
        own = [at for at, row in enumerate(self._rows) if before and row.line.key == before.line.key]
        if before and own:
            return own[min(before.number, len(own) - 1)]
        return min(self._cursor, max(0, len(self._rows) - 1))

    def _rows_of(self, line: Line, depth: int, above: str) -> Iterator[_Row]:
        """One row, or as many as the line takes when it is wrapped to the width left beside the indent and the mark."""
        first, further = (_indent(above, depth, rail) for rail in line.rail)
        if depth > MAX_INDENTED:
            first = f"{depth} ".rjust(len(first))
        if not line.is_wrapped or self._wrapped_at == 0:
            yield _Row(line, depth, line.text, first)
            return
        rows = line.rows(self._wrapped_at - len(first) - INDENT, self.app.console)
        for number, text in enumerate(rows):
            yield _Row(line, depth, text, further if number else first, number)

    def children_of(self, line: Line) -> Sequence[Line]:
        """The lines below one, made now if they were not yet."""
        if not callable(line.children):
            return line.children
        if line.key not in self._made:
            self._made[line.key] = line.children()
        return self._made[line.key]

    def _is_open(self, line: Line) -> bool:
        return line.has_children and self._opened.get(line.key, line.is_open)

    def _unfolded_rows(self) -> Iterator[_Row]:
        ahead = [(line, 0, "") for line in reversed(self._lines)]
        while ahead:
            line, depth, above = ahead.pop()
            yield from self._rows_of(line, depth, above)
            if self._is_open(line):
                indent = _indent(above, depth, line.rail[1])
                ahead += [(child, depth + 1, indent) for child in reversed(self.children_of(line))]

    def _matching(self) -> tuple[set[str], int]:
        """Keys of the lines to be shown: those with all the words in their path, and those above and below them.

        The terms of a line are also those of the lines below that have none of their own.
        """
        keep: set[str] = set()
        found = 0
        above: dict[str, str | None] = {}
        ahead: list[tuple[Line, tuple[str, ...], frozenset[str], str | None]] = [
            (line, self._words, frozenset(), None) for line in reversed(self._lines)
        ]
        while ahead and len(above) < MAX_FILTERED:
            line, missing, terms, parent = ahead.pop()
            above[line.key] = parent
            terms = line.terms or terms
            text = f"{line.text.plain} {line.also}".casefold() if missing else ""
            missing = tuple(word for word in missing if word not in text)
            if terms.issuperset(missing):
                found += 1
                at: str | None = line.key
                while at is not None and at not in keep:
                    keep.add(at)
                    at = above[at]
            ahead += [(child, missing, terms, line.key) for child in reversed(self.children_of(line))]
        return keep, found

    def _filtered_rows(self, keep: set[str]) -> Iterator[_Row]:
        ahead = [(line, 0, "") for line in reversed(self._lines)]
        while ahead:
            line, depth, above = ahead.pop()
            if line.key not in keep:
                continue
            yield from self._rows_of(line, depth, above)
            children = self.children_of(line)
            if self._opened.get(line.key, True):
                indent = _indent(above, depth, line.rail[1])
                ahead += [(child, depth + 1, indent) for child in reversed(children)]

    # Drawing

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
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
        offset = self.scroll_offset.x
        return Strip(segments, text.cell_len).crop_extend(offset, offset + self.size.width, style)

    def _text_at(self, at: int, y: int) -> Text:
        if at < len(self._rows):
            return self._text_of(self._rows[at])
        is_empty = self._was_shown and not self._rows and y == 0
        return Text(("No line contains these words." if self._words else self._empty) if is_empty else "", end="")

    def _text_of(self, row: _Row) -> Text:
        mark = ("▾ " if self._shows_children(row) else "▸ ") if row.has_mark else "  "
        guide = self.get_component_rich_style("outline--guide", partial=True)
        text = Text(row.indent, guide, no_wrap=True, end="").append(mark, guide)
        own = row.text.copy()
        own.end = ""
        if self._words:
            own.highlight_words(
                self._words, self.get_component_rich_style("outline--found", partial=True), case_sensitive=False
            )
        return text.append_text(own)

    def _shows_children(self, row: _Row) -> bool:
        return self._opened.get(row.line.key, True) if self._words else self._is_open(row.line)

    # Moving

    def _go(self, index: int) -> None:
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
        """Brings the cursor's line onto the screen."""
        region = Region(self.scroll_offset.x, self._cursor, 1, 1)
        self.scroll_to_region(region, animate=False, center=center, force=True)

    def action_move(self, count: int) -> None:
        """Up or down by lines."""
        self._go(self._cursor + count)

    def action_page(self, count: int) -> None:
        """Up or down by screens."""
        self._go(self._cursor + count * max(1, self.scrollable_size.height - 1))

    def action_first(self) -> None:
        """To the first line."""
        self._go(0)

    def action_last(self) -> None:
        """To the last line."""
        self._go(len(self._rows) - 1)

    def action_unfold(self) -> None:
        """Shows what is below the line, or goes there."""
        line = self.cursor_line
        if line is None or not line.has_children:
            return
        if self._shows_children(self._rows[self._cursor]):
            self._go(self._cursor + 1)
        else:
            self._set_open(line, True)

    def action_fold(self) -> None:
        """Hides what is below the line, or goes to the one above it."""
        line = self.cursor_line
        if line is None:
            return
        row = self._rows[self._cursor]
        if line.has_children and self._shows_children(row):
            self._set_open(line, False)
            return
        above = next((i for i in range(self._cursor, -1, -1) if self._rows[i].depth < row.depth), None)
        if above is not None:
            self._go(above)

    def action_choose(self) -> None:
        """Posts that the line was chosen."""
        if self.cursor_line is not None:
            self.post_message(self.Chosen(self, self.cursor_line))

    def toggle(self, line: Line) -> None:
        """Folds or unfolds a line."""
        if line.has_children:
            self._set_open(line, not (self._opened.get(line.key, True) if self._words else self._is_open(line)))

    def _set_open(self, line: Line, is_open: bool) -> None:
        self._opened[line.key] = is_open
        self._arrange()
        self.scroll_to_cursor()

    def on_click(self, event: events.Click) -> None:
        """A click goes to a line, on its mark it folds, and twice it chooses."""
        index = event.y + self.scroll_offset.y
        if index >= len(self._rows):
            return
        self._go(index)
        row = self._rows[index]
        mark = len(row.indent) - self.scroll_offset.x
        if event.chain == 2:
            self.action_choose()
        elif row.has_mark and mark <= event.x < mark + INDENT:
            self.toggle(row.line)


def _without_colours(style: Style | str | None) -> Style:
    """The cursor has its own colours; what is bold or underlined stays so."""
    return Style(bold=style.bold, underline=style.underline) if isinstance(style, Style) else Style()


def _indent(above: str, depth: int, rail: str) -> str:
    """The indent of the line above, and the rail of this one, unless it is at the top or too deep."""
    return above + rail if 0 < depth <= MAX_INDENTED else above
