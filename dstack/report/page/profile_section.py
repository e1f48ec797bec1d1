"""The parts of a profile beside its flame graph: the steps of its loops, the time of each line, what objects passed."""

from __future__ import annotations

from dataclasses import dataclass

from dstack.analysis.stacks.hot_lines import HotFile, hot_files
from dstack.analysis.stacks.iterations import Iterations, iterations_of
from dstack.model.profile import Profile
from dstack.report.page.section import ReportData, Section, render
from dstack.report.profile_text import endpoint_name, executed_in_words, heaviest_traffic, steps_in_words
from dstack.words import duration, size

MOST_LOOPS = 10
MOST_BARS = 200
MOST_ROWS = 20


def newest_steps(data: ReportData) -> Section | None:
    """The steps of the newest profile of a report, if it has any."""
    return steps_section(data.profile) if data.profile else None


def newest_lines(data: ReportData) -> Section | None:
    """The lines of the newest profile of a report, if it has any."""
    return lines_section(data.profile) if data.profile else None


@dataclass(frozen=True, slots=True)
class Loop:
    """The iterations of a loop: sentences about them, and a bar for each of the last ones."""

    sentences: tuple[str, ...]
    bars: tuple[Bar, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Bar:
    """An iteration: its height in percent of the longest, and what it is."""

    height: float
    title: str
    is_long: bool


def steps_section(profile: Profile) -> Section | None:
    """The iterations of its loops; None if too few were seen."""
    loops = [_loop(found) for found in iterations_of(profile)[:MOST_LOOPS]]
    return Section("steps", "Steps", render("steps.html", loops=loops)) if loops else None


def _loop(found: Iterations) -> Loop:
    first = max(0, len(found.each) - MOST_BARS)
    bars = (
        Bar(
            100 * one.length_us / found.longest.length_us,
            f"iteration {at + 1}: {duration(one.length_us / 1e6)}, {duration(one.from_us / 1e6)} after the begin",
            at in found.long and bool(found.extra),
        )
        for at, one in enumerate(found.each)
        if at >= first
    )
    return Loop(tuple(steps_in_words(found)), tuple(bars), first)


def lines_section(profile: Profile) -> Section | None:
    """The source of the files with the most time; None if no frame of the application was sampled."""
    files = hot_files(profile)
    return Section("lines", "Lines", render("lines.html", files=files, percent=_percent)) if files else None


def _percent(file: HotFile, weight_us: int) -> str:
    """``12 %`` of all time; empty for none."""
    return f"{file.share(weight_us):.1f} %" if weight_us else ""


def traffic_section(profile: Profile) -> Section | None:
    """The pairs of functions with most bytes; None if there was little."""
    traffic = heaviest_traffic(profile, MOST_ROWS)
    executed = executed_in_words(profile)
    body = render("traffic.html", traffic=traffic, executed=executed, size=size, name=endpoint_name)
    return Section("traffic", "Objects", body) if traffic else None
