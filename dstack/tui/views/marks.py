"""Marks of what has changed since the snapshot before: the signs say the same as the colours."""

from __future__ import annotations

from rich.text import Text

from dstack.analysis.views.snapshot_changes import SIGNS, Mark
from dstack.report.safe_text import SafeText

STYLES: dict[Mark, str] = {"new": "bold green", "changed": "bold cyan", "gone": "bold red"}
LEGEND = "+ new, ~ changed and - gone since the snapshot before"


def marked(mark: Mark | None, text: Text, *, in_words: bool = False) -> Text:
    """The text behind the sign of its mark, ``+ ``, or behind ``+ new  `` in words; as it is without a mark."""
    if mark is None:
        return text
    lead = f"{SIGNS[mark]} {mark}  " if in_words else f"{SIGNS[mark]} "
    return SafeText().append(lead, STYLES[mark]).append_text(text)
