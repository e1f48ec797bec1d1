"""Earlier snapshots in a report: their verdicts, and what has changed from each to the next."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.snapshot_changes import EarlierSnapshots
from dstack.errors import SnapshotFileError, UsageError
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.report.page import past_section
from dstack.report.page.section import ReportData
from tests.examples.recorded import recorded

NEWEST = load(recorded("two_actors"))


def earlier(seconds: float, snapshot: Snapshot = NEWEST, *, workers: int = 3) -> AnalysedSnapshot:
    """The snapshot as if taken before, with the stacks of some of its workers."""
    samples = tuple(replace(one, workers=one.workers[:workers]) for one in snapshot.samples)
    return AnalysedSnapshot.of(replace(snapshot, taken_at=NEWEST.taken_at - seconds, samples=samples))


def body_of(*before: AnalysedSnapshot) -> str:
    section = past_section.section(ReportData(AnalysedSnapshot.of(NEWEST), before))
    assert section is not None
    return re.sub(r"\s+", " ", str(section.body))


def test_one_snapshot_has_no_past() -> None:
    assert past_section.section(ReportData(AnalysedSnapshot.of(NEWEST))) is None


def test_each_snapshot_has_a_line_and_what_changed_is_listed() -> None:
    body = body_of(earlier(60, workers=2), earlier(30))

    assert re.findall(r'<tr id="past-(\d)">', body) == ["1", "2", "3"]
    assert re.findall(r'<a href="#past-(\d)"><text class="(\w+)" x="([0-9.]+)%"', body) == [
        ("1", "running", "3.0"),
        ("2", "deadlock", "50.0"),
        ("3", "deadlock", "97.0"),
    ]
    assert re.findall(r'<line class="(\w+)" x1="([0-9.]+)%" x2="([0-9.]+)%"', body)[-1] == ("deadlock", "50.0", "97.0")
    assert re.findall(r'class="verdict (\w+)"', body) == ["running", "deadlock", "deadlock"]
    assert "<td>no changes</td>" in body
    (changes,) = re.findall(r"<summary>(.+?)</summary>", body)
    assert changes.startswith("From 1 to 2, 29 s later: -1 finding")
    assert '<li class="gone"><b>- gone</b>' in body


def test_details_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_section, "MAX_COMPARED", 1)
    monkeypatch.setattr(past_section, "MAX_LINES", 0)

    body = body_of(*(earlier(90 - seconds, workers=2 + seconds // 10 % 2) for seconds in (0, 10, 20, 30)))

    assert body.count("<details") == 0
    monkeypatch.setattr(past_section, "MAX_LINES", 1)
    body = body_of(*(earlier(90 - seconds, workers=2 + seconds // 10 % 2) for seconds in (0, 10, 20, 30)))
    assert body.count("<details") == 1
    assert "older changes are left out" in body


def test_other_clusters_are_an_error() -> None:
    other = AnalysedSnapshot.of(load(recorded("ring_of_five")))

    with pytest.raises(UsageError, match="different clusters"):
        past_section.section(ReportData(AnalysedSnapshot.of(NEWEST), (other,)))


def test_earlier_snapshots_that_are_unreadable_or_without_the_job_are_left_out() -> None:
    class Saved:
        def __init__(self, snapshot: Snapshot | None) -> None:
            self._snapshot = snapshot

        def load(self) -> Snapshot:
            if self._snapshot is None:
                raise SnapshotFileError("Unreadable.")
            return self._snapshot

    job = NEWEST.jobs[0].job_id
    series = EarlierSnapshots([Saved(None), Saved(replace(NEWEST, jobs=())), Saved(NEWEST)], job)

    for _ in range(2):
        assert [one.diagnosis.job for one in series] == [job]
        assert [error.message for error in series.skipped] == ["Unreadable."]
