"""The panel above the findings."""

from __future__ import annotations

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.cluster_activity import Activity, Load, activity_of
from dstack.files.snapshot_file import load
from dstack.tui.views.overview import bar_of, overview_rows, sparkline
from tests.examples.recorded import RECORDED

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
    assert shown["Slow"].split() == ["Slow", "nothing"]


def test_a_healthy_cluster_shows_its_rate_and_what_everything_depends_on() -> None:
    shown = rows(SLOW, activity_of(SLOW))

    assert any(level in shown["Tasks"] for level in "▂▃▄▅▆▇█")
    assert "Archive.restore" in shown["Slow"]
    assert "slow_leaves.py:32" in shown["Slow"]
    assert shown["Stuck"].split() == ["Stuck", "nothing"]


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
