"""The parts of a profile beside its flame graph: the source with the time of each line."""

from __future__ import annotations

from dstack.analysis.stacks.hot_lines import HotFile, hot_files
from dstack.model.profile import Profile
from dstack.report.page.section import ReportData, Section, render


def section(data: ReportData) -> Section | None:
    """The lines of the newest profile of a report, if it has any."""
    profiles = [one for _, one in data.recordings if isinstance(one, Profile)]
    return lines_section(profiles[-1]) if profiles else None


def lines_section(profile: Profile) -> Section | None:
    """The source of the files with the most time; None if no frame of the application was sampled."""
    files = hot_files(profile)
    return Section("lines", "Lines", render("lines.html", files=files, percent=_percent)) if files else None


def _percent(file: HotFile, weight_us: int) -> str:
    """``12 %`` of all time; empty for none."""
    return f"{file.share(weight_us):.1f} %" if weight_us else ""
