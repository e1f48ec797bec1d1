"""All stacks of the application, merged by class, with the outliers and what was not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from dstack.analysis.views.stack_groups import ChosenStacks
from dstack.diagnosis import Diagnosis
from dstack.report.page.report_data import ReportData
from dstack.report.page.rows.merged_stacks import MergedStacks, ShownGroup
from dstack.report.page.section import Section, render
from dstack.report.paths import place_of
from dstack.report.stack_words import activities_in_words, short
from dstack.vertex_keys import Key
from dstack.words import plural

SHOWN_OUTLIERS = 20
SHOWN_ABSENT = 50
SHOWN_POSITIONS = 3
OPENED_LINES = 120
"""Groups are unfolded as long as they have not more lines than these together."""


@dataclass(frozen=True, slots=True)
class OutlierLink:
    """How some executions with the same stack differ from similar ones, and the id of the element of their stack."""

    words: str
    name: str
    stack: str


@dataclass(frozen=True, slots=True)
class GroupBlock:
    """A group with the places where its executions are, in words with their numbers, and how many are elsewhere."""

    shown: ShownGroup
    positions: tuple[tuple[int, str, str], ...]
    elsewhere: int
    is_open: bool


def section(data: ReportData) -> Section | None:
    """The stacks; None if there is none, and none is missing."""
    chosen = data.stacks
    if not chosen.executions and not chosen.absent:
        return None
    links = list(dict.fromkeys(_outlier_links(chosen, data.stack_ids)))
    groups = MergedStacks(chosen, data.stack_ids, _members(data.analysed.diagnosis)).groups()
    body = render(
        "stacks.html",
        title=_title(chosen),
        groups=list(_blocks(groups)),
        outliers=links[:SHOWN_OUTLIERS],
        more_outliers=len(links) - SHOWN_OUTLIERS,
        absent=chosen.absent[:SHOWN_ABSENT],
        more_absent=len(chosen.absent) - SHOWN_ABSENT,
        left_out=chosen.left_out,
        plural=plural,
    )
    return Section("stacks", "Stacks", body, script="stacks.js")


def _title(chosen: ChosenStacks) -> str:
    """``14 stacks of 13 processes: 12 waiting, 2 running``."""
    processes = len({one.worker_id for one in chosen.executions})
    count = len(chosen.executions)
    text = f"{plural(count, 'stack')} of {plural(processes, 'process', 'processes')}"
    return f"{text}: {activities_in_words(chosen.activities)}" if count else text


def _members(diagnosis: Diagnosis) -> set[Key]:
    return {
        key
        for finding in diagnosis.findings
        for key in (*finding.members, *(one.vertex for one in finding.final_blockers))
    }


def _outlier_links(chosen: ChosenStacks, ids: Mapping[Key, str]) -> Iterator[OutlierLink]:
    for key, one in chosen.outliers.items():
        yield OutlierLink(one.words, one.execution.kind, ids[key])


def _blocks(groups: Sequence[ShownGroup]) -> Iterator[GroupBlock]:
    for shown, lines in zip(groups, accumulate(group.frames for group in groups), strict=True):
        found = shown.group.positions
        first = tuple(
            (count, short(one.name), place_of(one.file, one.line) if one.file else "")
            for one, count in found[:SHOWN_POSITIONS]
        )
        elsewhere = sum(count for _, count in found[SHOWN_POSITIONS:])
        yield GroupBlock(shown, first, elsewhere, lines <= OPENED_LINES)
