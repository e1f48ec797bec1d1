"""The panel above the findings."""

from __future__ import annotations

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.cluster_activity import Activity, Load, activity_of
from dstack.files.snapshot_file import load
from dstack.tui.views.overview import bar_of, most_time, overview_rows, sparkline
from dstack.tui.widgets.time_axis import clock
from dstack.words import time_of_day
from tests.examples.recorded import RECORDED
from tests.unit.analysis.stacks.made_profiles import profile_of
from tests.unit.analysis.stacks.test_hot_lines import PROFILE

DEADLOCK = AnalysedSnapshot.of(load(RECORDED / "two_actors.json.gz"))
SLOW = AnalysedSnapshot.of(load(RECORDED / "case_studies" / "slow_leaves.json.gz"))


def rows(analysed: AnalysedSnapshot, activity: Activity, width: int = 80, nodes: int = 1) -> dict[str, str]:
    texts = [row.plain for row in overview_rows(analysed, activity, width, nodes)]
    return {text.split()[0]: text for text in texts}


def test_a_hung_cluster_shows_since_when_and_what_is_blocked() -> None:
    shown = rows(DEADLOCK, activity_of(DEADLOCK))

    assert "two_actors.py" in shown["Job"]
    assert "stuck since " in shown["Stuck"]
    assert "1 more is blocked behind it" in shown["Stuck"]
    assert "Slow" not in shown


def test_a_job_is_as_old_as_the_last_sample_and_its_time_is_not_rounded_up() -> None:
    snapshot = DEADLOCK.snapshot

    assert activity_of(DEADLOCK).at == snapshot.taken_at + snapshot.samples[-1].ended_s
    assert clock(59.9) == time_of_day(59.9)


def test_a_healthy_cluster_shows_its_rate_and_what_everything_depends_on() -> None:
    shown = rows(SLOW, activity_of(SLOW))

    assert any(level in shown["Tasks"] for level in "▂▃▄▅▆▇█")
    assert "Archive.restore" in shown["Slow"]
    assert "slow_leaves.py:32" in shown["Slow"]
    assert "Stuck" not in shown


def test_a_likely_hang_is_stuck_and_not_slow() -> None:
    for name in ("thread_raised", "idle_service"):
        analysed = AnalysedSnapshot.of(load(next(RECORDED.rglob(f"{name}.json.gz"))))
        shown = rows(analysed, activity_of(analysed))

        assert analysed.diagnosis.verdict == "stalled"
        assert shown["Stuck"].split()[1] == "likely:"
        assert len(shown["Stuck"].split()) > 2
        assert "Slow" not in shown


def test_a_profile_leads_then_the_critical_path() -> None:
    path = most_time(SLOW, ())

    assert most_time(SLOW, [PROFILE]) == "60 % rewards.py:12 model → time.sleep, of 10 s"
    assert most_time(SLOW, [profile_of([])]) == path
    assert " % " in path
    assert "of the critical path" in path
    assert most_time(DEADLOCK, ()) == ""
    (slow,) = [row.plain for row in overview_rows(SLOW, Activity(at=0.0), 80, 1, path) if path in row.plain]
    assert slow == f"Slow   {path}"


def test_what_is_unknown_has_no_bar() -> None:
    activity = Activity(at=0.0, loads=[Load(name="10.0.0.1", memory=0.5)])

    assert "CPU" not in rows(SLOW, activity)["Node"]
    assert "MEM" in rows(SLOW, activity)["Node"]


def test_the_busiest_nodes_are_shown_and_the_others_counted() -> None:
    loads = [Load(name=f"10.0.0.{number}", cpu=number / 10, memory=0.1) for number in range(1, 5)]
    activity = Activity(at=0.0, loads=loads)

    (first,) = [text for text in rows(SLOW, activity).values() if "10.0.0." in text]
    assert first.startswith("Nodes  10.0.0.4")
    assert first.endswith("3 more nodes")
    tall = [row.plain for row in overview_rows(SLOW, activity, 120, 6) if "10.0.0." in row.plain]
    assert len(tall) == 4
    assert not any("more" in text for text in tall)


def test_bars_and_columns_are_in_proportion() -> None:
    assert bar_of(0.5, 4) == "██··"
    assert bar_of(0.0, 4) == "····"
    assert bar_of(1.5, 4) == "████"
    assert sparkline([0.0, None, 5.0, 10.0]) == "▁ ▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
