"""The verdict in one line, without its word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dstack.analysis.findings.wording.failures import headline as failures_in_headline
from dstack.analysis.naming import names
from dstack.diagnosis import Diagnosis, OutsideWait, Verdict
from dstack.words import listed, plural, word

SHOWN_OUTSIDE = 2
STYLES: dict[Verdict, str] = {
    "deadlock": "bold red",
    "hang": "bold red",
    "stalled": "bold yellow",
    "blocked": "bold cyan",
    "clear": "bold green",
}


def headline(diagnosis: Diagnosis) -> str:
    """The verdict in one line, without its word."""
    count = len(diagnosis.findings)
    if not count:
        return _clear(diagnosis)
    first = diagnosis.findings[0]
    certain = ("" if first.confirmed else "suspected: ") if diagnosis.is_stuck else ""
    if diagnosis.verdict == "blocked":
        certain = "no deadlock; " if not diagnosis.incomplete else "no deadlock observed, but not everything was read; "
    return f"{certain}{first.summary}"


def _clear(diagnosis: Diagnosis) -> str:
    """What is waited for without any finding: nothing, or what does not depend on Ray."""
    whose = f" of job {diagnosis.job}" if diagnosis.job is not None else ""
    unread = ", but not everything could be read" if diagnosis.incomplete else ""
    if not diagnosis.outside:
        return f"no waits{whose} observed{unread}" if unread else f"no waits{whose}"
    waits = listed(list(_outside(diagnosis.outside)))
    return f"no wait{whose} depends on Ray{unread}; {waits}{failures_in_headline(diagnosis.failed_before)}"


def _outside(waits: Sequence[OutsideWait]) -> Iterator[str]:
    """``4 tasks wait in threading.Event.wait (train.py:12)``, the most frequent first, and how many others wait."""
    for wait in waits[:SHOWN_OUTSIDE]:
        line = f" ({wait.file.rpartition('/')[2]}:{wait.line})" if wait.file else ""
        lasting = f" {time}" if (time := names.lasting(wait.since)) else ""
        yield f"{plural(wait.count, wait.kind)} {word(wait.count, 'waits', 'wait')} in {wait.call}{line}{lasting}"
    others = sum(wait.count for wait in waits[SHOWN_OUTSIDE:])
    if others:
        yield f"{others:,} more in other calls"
