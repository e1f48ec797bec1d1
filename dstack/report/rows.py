"""Rows of a report or of the TUI, each with the vertex and the line of code that it is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from dstack.report.paths import shortened_left
from dstack.report.safe_text import SafeText
from dstack.report.wrapping import wrapped
from dstack.vertex_keys import Key

SHORTEST_PATH = 24
MIN_BODY = 20


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what it begins with, also where it is wrapped, and its text.

    ``place`` is the file and line that it is about. With ``location``, the text is a source line, and the row is cut
    to the width: the location from the left, so that its file name and line stay, the source from the right. Of these
    rows, ``title`` stands before the location.
    """

    lead: str
    follow: str
    body: SafeText
    vertex: Key | None = None
    place: tuple[str, int] | None = None
    location: str = ""
    title: str = ""

    def lines(self, width: int, console: Console) -> list[Text]:
        """The row in lines of at most so many cells."""
        room = max(MIN_BODY, width - max(len(self.lead), len(self.follow)))
        if self.location:
            return [self._source_line(width, room)]
        lines = wrapped(self.body, console, room)
        return [SafeText(self.follow if at else self.lead, "dim") + line for at, line in enumerate(lines)]

    def _source_line(self, width: int, room: int) -> Text:
        text = SafeText(self.lead, "dim")
        if self.title:
            text.append(f"{self.title} ")
        location = shortened_left(self.location, max(SHORTEST_PATH, room // 2 - len(self.title)))
        text.append(location, "cyan").append("   ").append_text(self.body)
        text.truncate(width, overflow="ellipsis")
        text.rstrip()
        return text


def lines_of(console: Console, rows: Iterable[Row]) -> list[Text]:
    """All lines of these rows, in the width of the console."""
    return [line for row in rows for line in row.lines(console.width, console)]


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Prints lines as they are, cut at the edge."""
    for line in lines:
        console.print(line, no_wrap=True, overflow="ellipsis")


def print_rows(console: Console, rows: Iterable[Row]) -> None:
    """Prints rows in the width of the console."""
    print_lines(console, lines_of(console, rows))
