"""The whole pages: a report to share, or one flame graph; each is one file that requests nothing.

It runs no script but its own. Data is in elements that browsers do not execute, and the Content-Security-Policy allows
the page's scripts by their hashes, so no text of a cluster can run, wherever it stands.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Container, Iterable, Sequence
from time import localtime, strftime

from markupsafe import Markup

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.cluster_activity import activity_of, jobs_in_words
from dstack.model.diagnosis import Diagnosis
from dstack.model.profile import Profile, Sampled
from dstack.report.critical_path_text import most_of_path_in_words
from dstack.report.finding import standing
from dstack.report.page import (
    calls_section,
    cluster_section,
    findings_section,
    flame_section,
    past_section,
    profile_section,
    stacks_section,
    timeline_section,
    waits_section,
)
from dstack.report.page.flame_section import Flame, flames_of_recording, profile_flame, section_of
from dstack.report.page.profile_section import lines_section, steps_section, traffic_section
from dstack.report.page.section import ReportData, Section, asset, render
from dstack.report.profile_text import most_time_in_words, profile_summary
from dstack.report.summaries import headline, recording_summary
from dstack.words import plural

NOTHING = Markup("")
SECTIONS: Sequence[Callable[[ReportData], Section | None]] = (
    findings_section.section,
    findings_section.possible_section,
    waits_section.section,
    stacks_section.section,
    flame_section.section,
    profile_section.newest_steps,
    profile_section.newest_lines,
    timeline_section.section,
    calls_section.section,
    cluster_section.section,
    past_section.section,
    findings_section.coverage_section,
)
"""The sections in their order; one for which there is no data is left out."""


def document(title: str, heading: Markup, sections: Sequence[Section], brief: Markup = NOTHING) -> bytes:
    """A whole page, as UTF-8: the heading, a bar with ``brief`` and links to the sections, and the sections."""
    names = dict.fromkeys(name for one in sections for name in (one.library, one.script) if name)
    script = "\n".join(["'use strict';", *map(asset, ("page.js", *names)), "document.body.dataset.drawn = 'yes';"])
    style = asset("page.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    page = render(
        "page.html",
        title=title,
        heading=heading,
        brief=brief,
        sections=sections,
        policy=Markup(policy),
        style=Markup(style),
        script=Markup(script),
    )
    return page.encode(errors="backslashreplace")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def report_page(
    analysed: AnalysedSnapshot,
    before: Iterable[AnalysedSnapshot] = (),
    recordings: Sequence[tuple[str, Sampled]] = (),
) -> bytes:
    """The page, as UTF-8, about a snapshot; about those ``before`` it only what has changed."""
    data = ReportData(analysed, before, recordings)
    sections = [found for section in SECTIONS if (found := section(data))]
    diagnosis = analysed.diagnosis
    title = f"{diagnosis.verdict.upper()} {headline(diagnosis)}"
    return document(title, _heading(data, {one.key for one in sections}), sections, _brief(analysed))


def _heading(data: ReportData, keys: Container[str]) -> Markup:
    """The verdict, and what a reader asks first, as names with values; ``keys`` are those of the sections."""
    analysed = data.analysed
    snapshot, diagnosis = analysed.snapshot, analysed.diagnosis
    coverage = diagnosis.coverage
    facts = (
        ("Stuck" if diagnosis.is_stuck else "State", _since(diagnosis)),
        ("Members", _members(diagnosis)),
        _most_time(data, keys),
        ("Tasks", _tasks(analysed)),
        ("Job", _job(analysed)),
        ("Workers and drivers", f"{coverage.workers.observed:,} of {coverage.workers.total:,} observed"),
        ("Nodes", f"{coverage.nodes.observed:,} of {coverage.nodes.total:,} observed"),
        ("Taken", strftime("%Y-%m-%d %H:%M:%S %z", localtime(snapshot.taken_at))),
        ("Cluster", f"Ray {snapshot.ray_version} at {snapshot.address}"),
    )
    return render(
        "heading.html",
        verdict=diagnosis.verdict,
        headline=headline(diagnosis),
        facts=[(*fact, "")[:3] for fact in facts if fact[1]],
        notes=snapshot.notes,
    )


def _most_time(data: ReportData, keys: Container[str]) -> tuple[str, str, str]:
    """Where most time went, by the newest profile, else by the critical path; and the anchor of the details."""
    if data.profile and (text := most_time_in_words(data.profile)):
        return "Most time", text, "lines" if "lines" in keys else "flame"
    return "Most time", most_of_path_in_words(data.analysed.diagnosis, data.critical_path), "critical-path"


def _brief(analysed: AnalysedSnapshot) -> Markup:
    """What the bar shows while the heading is out of sight."""
    diagnosis = analysed.diagnosis
    job = _job(analysed)
    texts = (_since(diagnosis), f"job {job}" if job else "", plural(diagnosis.coverage.nodes.total, "node"))
    return render("brief.html", verdict=diagnosis.verdict, texts=list(filter(None, texts)))


def _since(diagnosis: Diagnosis) -> str:
    """``since 03:53:24 (1 min 37 s)``: how long the first finding has lasted."""
    return standing(diagnosis.findings[0]).removeprefix("stuck ") if diagnosis.findings else ""


def _members(diagnosis: Diagnosis) -> str:
    """``2 waiting, 1 queued, 3 blocked behind``, of the first finding if it is stuck."""
    if not diagnosis.is_stuck:
        return ""
    first = diagnosis.findings[0]
    queued = sum(diagnosis.vertices[key].kind == "task" for key in first.members)
    counts = ((len(first.members) - queued, "waiting"), (queued, "queued"), (first.waiters_total, "blocked behind"))
    return ", ".join(f"{count:,} {what}" for count, what in counts if count)


def _tasks(analysed: AnalysedSnapshot) -> str:
    """``2 running, 1 pending, 1 failed``: what ran when the snapshot was taken, and failures in its history if any."""
    if not analysed.snapshot.samples:
        return ""
    activity = activity_of(analysed)
    counts = [(activity.running, "running"), (activity.pending, "pending")]
    if analysed.history is not None:
        last = {one.task.task_id: one.state for one in analysed.history.attempts}
        counts.append((sum(state == "failed" for state in last.values()), "failed"))
    return ", ".join(f"{count:,} {state}" for count, state in counts)


def _job(analysed: AnalysedSnapshot) -> str:
    """The jobs of the first finding, or the one that the diagnosis is of."""
    diagnosis = analysed.diagnosis
    ids = (diagnosis.job,) if diagnosis.job else diagnosis.findings[0].jobs if diagnosis.findings else ()
    jobs = [job for job in analysed.snapshot.jobs if job.job_id in ids]
    return f"{jobs_in_words(jobs)}{' only' if diagnosis.job else ''}" if jobs else ""


def flame_page(flames: Sequence[Flame], title: str, subtitle: str = "", *others: Section | None) -> bytes:
    """The page, as UTF-8; of several flame graphs the first is shown, and the reader can choose another."""
    sections = [section_of("flame", "Flame graph" if others else title, flames), *filter(None, others)]
    return document(title, render("flame_heading.html", title=title, subtitle=subtitle), sections)


def sampled_page(sampled: Sampled) -> bytes:
    """The page of a profile or a recording, as UTF-8."""
    if isinstance(sampled, Profile):
        others = steps_section(sampled), lines_section(sampled), traffic_section(sampled)
        return flame_page([profile_flame(sampled)], f"Profile of {sampled.address}", profile_summary(sampled), *others)
    title = f"Flame graph of {sampled.address}"
    return flame_page(flames_of_recording(sampled), title, recording_summary(sampled))
