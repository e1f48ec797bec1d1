"""Parts that all lines about stacks share: their subject, and the texts of counts, locations and source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import TypeVar

from dstack.analysis.stacks.app_threads import PathStep
from dstack.report.safe_text import SafeText
from dstack.report.stack_words import (
    ACTIVITY_STYLES,
    ORIGINS,
    WORDS,
    activities_in_words,
    activity_word,
    frame_location,
    short,
)
from dstack.tui.widgets.outline_tree import Line
from dstack.vertex_keys import Key

__all__ = [
    "ACTIVITY_STYLES",
    "ORIGINS",
    "WORDS",
    "About",
    "activities_in_words",
    "activity_word",
    "frame_location",
    "list_lines",
    "mark_of",
    "ranks_part",
    "sentence_lines",
    "short",
    "source_lines",
]
T = TypeVar("T")
CONTEXT_LINES = 3
"""Number of source lines shown before and after a frame's line."""
FEW = 5
"""Lists on a page that are not longer are unfolded at first."""
SHOWN = 1_000
"""Maximum number of shown items of a list; the others are counted."""


@dataclass(frozen=True, slots=True)
class About:
    """The subject of a line: an execution or other vertex, workers to mark, a branch, or a line of code.

    ``targets`` are the vertices that it waits for; the keys of their lines begin with ``prefix``.
    """

    vertex: Key | None = None
    workers: tuple[str, ...] = ()
    path: tuple[PathStep, ...] | None = None
    location: tuple[str, int] | None = None
    targets: tuple[Key, ...] = ()
    prefix: str = ""


def source_lines(key: str, sources: Mapping[str, Mapping[int, str]], file: str, line: int) -> Iterator[Line]:
    """The recorded source lines around one, without their common indentation."""
    known = sources.get(file, {})
    around = [number for number in range(line - CONTEXT_LINES, line + CONTEXT_LINES + 1) if number in known]
    texts = dedent("\n".join(known[number].replace("\n", " ") for number in around)).split("\n")
    for number, code in zip(around, texts, strict=False):
        mark, style = ("›", "bold") if number == line else (" ", "dim")
        text = SafeText().append(f"{mark}{number:>4} ", "dim").append(code.rstrip(), style)
        yield Line(f"{key}/{number - line}", text, data=About(location=(file, number)))


def sentence_lines(key: str, text: str, style: str = "") -> list[Line]:
    """One wrapped line with the text; none for an empty text."""
    return [Line(key, SafeText(text, style), hanging_indent=0)] if text else []


def list_lines(
    key: str,
    title: str,
    items: Sequence[T],
    line_of: Callable[[T], tuple[SafeText, About]],
    style: str = "",
    *,
    is_open: bool = False,
) -> list[Line]:
    """One line that unfolds into a line for each item."""

    def lines() -> list[Line]:
        made = [(number, *line_of(item)) for number, item in enumerate(items[:SHOWN])]
        shown = [Line(f"{key}/{about.vertex or number}", text, data=about) for number, text, about in made]
        more = len(items) - SHOWN
        return [*shown, Line(f"{key}/more", SafeText(f"and {more:,} more", "dim"))] if more > 0 else shown

    return [Line(key, SafeText(title, style), lines, is_open=is_open, hanging_indent=0)]


def mark_of(workers: Sequence[str], marked: set[str]) -> str:
    """``◆ `` if all of these workers are marked, ``◇ `` if some are."""
    count = sum(worker in marked for worker in workers)
    return "◆ " if workers and count == len(workers) else "◇ " if count else ""


def ranks_part(words: str) -> str:
    """The words for ranks, separated from the text before them."""
    return f"  {words}" if words else ""
