"""The checks of ``dstack doctor`` as text: a line for each, with a remedy for what is not as it should be."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from dstack.checks import Check, Level
from dstack.report.safe_text import SafeText
from dstack.report.wrapping import wrapped

MARKS: dict[Level, tuple[str, str]] = {"ok": ("✔", "green"), "limit": ("!", "yellow"), "failure": ("✖", "bold red")}
"""The marks differ without colours, too."""
INDENT = 4
"""The width of a mark with the spaces around it."""


def print_checks(console: Console, title: str, checks: Sequence[Check]) -> None:
    """Print a group of checks under its title, and an empty line."""
    console.print(SafeText(title, "bold"))
    for check in checks:
        mark, style = MARKS[check.level]
        _print_row(console, Text(mark, style), SafeText(check.text))
        if check.remedy:
            _print_row(console, Text(" "), SafeText(check.remedy))
    console.print()


def _print_row(console: Console, mark: Text, text: Text) -> None:
    """Further lines of the text begin below the first one."""
    for row in wrapped(text, console, console.width - INDENT):
        console.print(Text.assemble("  ", mark, " ", row), soft_wrap=True)
        mark = Text(" ")
