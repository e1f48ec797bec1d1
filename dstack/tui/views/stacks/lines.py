"""What the lines about stacks have in common: what they are about, and how counts, places and source are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent
from typing import TypeVar

from dstack.analysis.stacks.app_threads import Doing, Place
from dstack.model import Origin
from dstack.report.paths import short_path
from dstack.report.safe_text import SafeText
from dstack.tui.widgets.outline_line import Line
from dstack.vertex_keys import Key

T = TypeVar("T")
AROUND = 3
"""So many lines of source are shown before and after a frame's own."""
FEW = 5
"""Lists on a page that are no longer than this are unfolded at first."""
SHOWN_OUTLIERS = 10
"""Up to so many outliers, the branches that lead to them are unfolded at first."""
SHOWN = 1_000
"""So many of a list are shown; the rest is counted."""
DOING_STYLES: Mapping[Doing, str] = {"waits": "yellow", "runs": "green", "rests": "dim"}
"""Not by colour alone: the words say the same."""
WORDS: Mapping[Doing, tuple[str, str]] = {
    "waits": ("waits", "waiting"),
    "runs": ("runs", "running"),
    "rests": ("off CPU", "off CPU"),
}
"""What begins the line of one, and what stands after a number."""
ORIGINS: Mapping[Origin, str] = {"user": "your", "library": "library", "ray": "Ray", "stdlib": "Python"}
"""Before a noun: ``your code``, ``3 Ray frames``."""


@dataclass(frozen=True)
class About:
    """What a line is about: an execution or other vertex to go to, workers to mark, a branch, a line of code.

    ``onward`` is what is waited for there, whose lines have keys that begin with ``under``.
    """

    vertex: Key | None = None
    workers: tuple[str, ...] = ()
    path: tuple[Place, ...] | None = None
    place: tuple[str, int] | None = None
    onward: tuple[Key, ...] = ()
    under: str = ""


def source_lines(key: str, sources: Mapping[str, Mapping[int, str]], file: str, line: int) -> Iterator[Line]:
    """The lines around one, as far as the node had the file, without what all are indented by."""
    known = sources.get(file, {})
    around = [number for number in range(line - AROUND, line + AROUND + 1) if number in known]
    texts = dedent("\n".join(known[number].replace("\n", " ") for number in around)).split("\n")
    for number, code in zip(around, texts, strict=False):
        mark, style = ("›", "bold") if number == line else (" ", "dim")
        text = SafeText().append(f"{mark}{number:>4} ", "dim").append(code.rstrip(), style)
        yield Line(f"{key}/{number - line}", text, data=About(place=(file, number)))


def said(key: str, text: str, style: str = "") -> list[Line]:
    """A sentence, wrapped; no line for an empty one."""
    return [Line(key, SafeText(text, style), hang=0)] if text else []


def listed(
    key: str,
    title: str,
    things: Sequence[T],
    line_of: Callable[[T], tuple[SafeText, About]],
    style: str = "",
    *,
    is_open: bool = False,
) -> list[Line]:
    """A line that unfolds into one for each thing."""

    def lines() -> list[Line]:
        made = [(number, *line_of(thing)) for number, thing in enumerate(things[:SHOWN])]
        shown = [Line(f"{key}/{about.vertex or number}", text, data=about) for number, text, about in made]
        rest = len(things) - SHOWN
        return [*shown, Line(f"{key}/more", SafeText(f"and {rest:,} more", "dim"))] if rest > 0 else shown

    return [Line(key, SafeText(title, style), lines, is_open=is_open, hang=0)]


def mark_of(workers: Sequence[str], marked: set[str]) -> str:
    """``◆ `` where all of these are marked, ``◇ `` where some are."""
    count = sum(worker in marked for worker in workers)
    return "◆ " if workers and count == len(workers) else "◇ " if count else ""


def short(function: str) -> str:
    """A function's name without those it is defined in."""
    return function.rpartition("<locals>.")[2]


def doing_word(doing: Doing) -> SafeText:
    """``waits``, ``runs`` or ``off CPU``, to begin a line with."""
    return SafeText().append(f"{WORDS[doing][0]}  ", DOING_STYLES[doing])


def at(place: Place) -> str:
    """``train.py:12``."""
    return f"{short_path(place.file)}:{place.line}"


def doing_in_words(counts: Mapping[Doing, int]) -> str:
    """``10 waiting, 1 running``."""
    return ", ".join(f"{count:,} {word}" for doing, (_, word) in WORDS.items() if (count := counts.get(doing, 0)))
