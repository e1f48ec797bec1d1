"""The words for stacks that the report on all stacks and the views share: counts, activities, names and outliers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from dstack.analysis.stacks.app_threads import Activity, PathStep
from dstack.analysis.stacks.peers import Outlier
from dstack.model import Snapshot
from dstack.observed import Origin
from dstack.report.paths import location, place_of
from dstack.report.safe_text import SafeText
from dstack.words import plural

ACTIVITY_STYLES: Mapping[Activity, str] = {"waiting": "yellow", "running": "green", "off CPU": "dim"}
"""The words say the same as the colours."""
WORDS: Mapping[Activity, tuple[str, str]] = {
    "waiting": ("waits", "waiting"),
    "running": ("runs", "running"),
    "off CPU": ("off CPU", "off CPU"),
}
"""The word at the begin of a line, and the word after a number."""
ORIGINS: Mapping[Origin, str] = {"user": "your", "library": "library", "ray": "Ray", "stdlib": "Python"}
"""Before a noun: ``your code``, ``3 Ray frames``."""
SHOWN_PARTS = 3
"""Maximum number of groups of outliers that one line names."""


def short(function: str) -> str:
    """A function's name without the functions that enclose its definition."""
    return function.rpartition("<locals>.")[2]


def activity_word(activity: Activity) -> SafeText:
    """``waits``, ``runs`` or ``off CPU``, for the begin of a line."""
    return SafeText().append(f"{WORDS[activity][0]}  ", ACTIVITY_STYLES[activity])


def frame_location(frame: PathStep) -> str:
    """``train.py:12``."""
    return place_of(frame.file, frame.line)


def activities_in_words(counts: Mapping[Activity, int]) -> str:
    """``10 waiting, 1 running``."""
    return ", ".join(f"{count:,} {word}" for activity, (_, word) in WORDS.items() if (count := counts.get(activity, 0)))


def outliers_in_words(outliers: Sequence[Outlier]) -> str:
    """``1 outlier``, and how it differs from similar executions if ranks name it."""
    named = list(dict.fromkeys(outlier.words for outlier in outliers if outlier.rank_set))
    more = f"; {len(named) - SHOWN_PARTS:,} more" if len(named) > SHOWN_PARTS else ""
    differences = f": {'; '.join(named[:SHOWN_PARTS])}{more}" if named else ""
    return f"{plural(len(outliers), 'outlier')}{differences}"


def frame_line(snapshot: Snapshot, step: PathStep, doing: Text | None = None) -> SafeText:
    """``Trainer.step  app/train.py:12  loss.backward()``, with what is done there before the source."""
    text = SafeText().append(short(step.name), "bold" if step.origin == "user" else "")
    if step.file:
        text.append(f"  {location(step.file, step.line)}", "cyan")
    if doing:
        text.append_text(doing)
    source = snapshot.source_line(step.file, step.line) if step.file else None
    return text.append(f"  {source}" if source else "", "dim")
