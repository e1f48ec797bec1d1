"""Rich text of reports and views: without harmful characters, wrapped, with short places of code, and in rows."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from dstack.model.vertex_keys import Key
from dstack.words import visible

NARROWEST = 60
"""Rows may be narrower than there is room, down to this share of it in percent, so that no word stands alone."""
PACKAGES = ("/site-packages/", "/dist-packages/")
LONGEST_LOCATION = 40
SHORTEST_PATH = 24
MIN_BODY = 20


class SafeText(Text):
    """Rich text that takes only what is :func:`dstack.words.visible`, and never reads markup."""

    def __init__(self, text: str = "", *arguments: Any, **options: Any) -> None:
        super().__init__(visible(text), *arguments, **options)

    def append(self, text: Any, style: Any = None) -> SafeText:
        """Adds text, made visible."""
        super().append(visible(text) if isinstance(text, str) else text, style)
        return self


def row_of(text: str, number: int, width: int) -> str:
    """One of the rows of a text in a widget of ``width`` cells, from 0; empty after the last."""
    rows = textwrap.wrap(visible(text), max(1, width))
    return rows[number] if number < len(rows) else ""


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


def short_path(file: str) -> str:
    """Relative to the working directory, if there is one and it is shorter; without what is before site-packages."""
    for marker in PACKAGES:
        if marker in file:
            return file.rpartition(marker)[2]
    if not os.path.isabs(file):
        return file
    try:
        relative = os.path.relpath(file)
    except FileNotFoundError:
        return file
    return relative if len(relative) < len(file) and not relative.startswith("..") else file


def shortened_left(location: str, longest: int) -> str:
    """``…/app/train.py:12``: without as many folders as it takes, but never without the file's name."""
    if len(location) <= longest:
        return location
    folders = location.split("/")
    while len(folders) > 1 and len("/".join(folders)) + 2 > longest:
        folders.pop(0)
    return "/".join(("…", *folders))


def place_of(file: str, line: int | None) -> str:
    """``app/train.py:12``; without the line where that is unknown, as in a library of C."""
    return f"{short_path(file)}:{line}" if line else short_path(file)


def location(file: str, line: int | None) -> str:
    """As :func:`place_of`, or ``…/app/train.py:12`` where that would take too much of a line."""
    return shortened_left(place_of(file, line), LONGEST_LOCATION)


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what it begins with, in a ``style``, also where it is wrapped, and its text.

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
    style: str = "dim"

    def lines(self, width: int, console: Console) -> list[Text]:
        """The row in lines of at most so many cells."""
        room = max(MIN_BODY, width - max(len(self.lead), len(self.follow)))
        if self.location:
            return [self._source_line(width, room)]
        lines = wrapped(self.body, console, room)
        return [SafeText().append(self.follow if at else self.lead, self.style) + line for at, line in enumerate(lines)]

    def _source_line(self, width: int, room: int) -> Text:
        text = SafeText().append(self.lead, self.style)
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


def plain_text(show: Callable[[Console], None], width: int | None = None) -> str:
    """What a function prints on a console without colours, so many columns wide."""
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None, force_terminal=False)
    with console.capture() as captured:
        show(console)
    return captured.get()


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Prints lines as they are, cut at the edge."""
    for line in lines:
        console.print(line, no_wrap=True, overflow="ellipsis")


def print_rows(console: Console, rows: Iterable[Row]) -> None:
    """Prints rows in the width of the console."""
    print_lines(console, lines_of(console, rows))
