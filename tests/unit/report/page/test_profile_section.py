"""The parts of a profile in a page, beside its flame graph."""

from __future__ import annotations

from msgspec.structs import replace

from dstack.report.page.profile_section import lines_section, steps_section
from tests.unit.analysis.stacks.made_profiles import FILE, in_turn, line, profile_of
from tests.unit.analysis.stacks.test_hot_lines import PROFILE, SOURCES
from tests.unit.analysis.stacks.test_iterations import step
from tests.unit.support.html_elements import ATTACK, elements_of


def test_the_lines_have_their_shares_their_code_and_gaps() -> None:
    found = lines_section(replace(PROFILE, sources=SOURCES))
    assert found
    page = elements_of(found.body)

    assert [one.text for one in page.all("h3")] == [f"{FILE} 100.0 %", "/srv/app/rewards.py 60.0 %"]
    rows = [[cell.text for cell in row.all("td")] for row in page.all("tr")]
    assert ["60.0 %", "", "", "25", "get()"] in rows
    assert ["40.0 %", "10.0 %", "", "26", "update()"] in rows
    assert ["", "", "", "24", "for step in range(9):"] in rows
    assert ["30.0 %", "", "", "9", "not read"] in rows
    assert len(list(page.all(class_="gap"))) == 2


def test_hostile_files_and_lines_remain_text() -> None:
    profile = profile_of(in_turn((1, (line(1, ATTACK, ATTACK),))))
    found = lines_section(replace(profile, sources={ATTACK: {1: ATTACK}}))
    assert found
    page = elements_of(found.body)

    assert {one.tag for one in page.all()}.isdisjoint({"img", "svg", "iframe", "script"})
    assert lines_section(profile_of([])) is None


def test_the_steps_have_a_bar_for_each_iteration_and_what_the_long_ones_had() -> None:
    found = steps_section(profile_of(in_turn(*step(2) * 3, *step(8), *step(2) * 2)))
    assert found
    page = elements_of(found.body)

    assert "4 iterations of main (train.py:25-26) in driver train.py" in page.text
    assert "The longest one had 8.0 s instead of 2.0 s in Reward.score" in page.text
    bars = list(page.all("i"))
    assert [one.attributes["data-height"] for one in bars] == ["33.3", "33.3", "100.0", "33.3"]
    assert ["long" in one.attributes.get("class", "") for one in bars] == [False, False, True, False]
    assert bars[2].attributes["title"] == "iteration 3: 9.0 s, 9.0 s after the begin"
    assert steps_section(profile_of([])) is None
