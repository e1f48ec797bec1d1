"""A tree of very many lines, of which only those on the screen are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from dstack.tui.widgets.outline_tree import INDENT, MAX_FILTERED, Line, LineTree, Row

MAX_WIDTH = 1_000


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
        self._rows: list[Row] = []
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

    def _row_again(self, before: Row | None) -> int:
        """The new index of the row under the cursor, whose line may have been wrapped anew or removed."""
        own = [at for at, row in enumerate(self._rows) if before and row.line.key == before.line.key]
        if before and own:
            return own[min(before.number, len(own) - 1)]
        return min(self._cursor, max(0, len(self._rows) - 1))

    # Drawing

    def render_line(self, y: int) -> Strip:
        """One row of the screen."""
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
        return Text(("No line contains these words." if self._tree.words else self._empty) if is_empty else "", end="")

    def _text_of(self, row: Row) -> Text:
        mark = ("▾ " if self._tree.is_unfolded(row.line) else "▸ ") if row.has_mark else "  "
        guide = self.get_component_rich_style("outline--guide", partial=True)
        text = Text(row.indent, guide, no_wrap=True, end="").append(mark, guide)
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
        """Move the cursor by rows."""
        self._select(self._cursor + count)

    def action_page(self, count: int) -> None:
        """Move the cursor by screens."""
        self._select(self._cursor + count * max(1, self.scrollable_size.height - 1))

    def action_first(self) -> None:
        """Move the cursor to the first row."""
        self._select(0)

    def action_last(self) -> None:
        """Move the cursor to the last row."""
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
        """Post that the line was chosen."""
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
