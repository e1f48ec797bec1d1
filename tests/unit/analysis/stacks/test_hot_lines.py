"""The lines of source with the time that was spent on them."""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis.stacks.hot_lines import MOST_LINES, hot_files
from dstack.analysis.stacks.profiles import halves
from dstack.model.profile import PathStep
from tests.unit.analysis.stacks.made_profiles import FILE, GET, ON_CPU, SCORE, SLEEP, in_turn, line, profile_of

REWARDS = "/srv/app/rewards.py"
LOADED = PathStep("load", "/usr/lib/data.py", 3, "load", "library")
PROFILE = profile_of(
    in_turn(
        (6, (line(25), GET, SCORE, line(9, "score", REWARDS), line(12, "model", REWARDS), SLEEP)),
        (3, (line(26), line(9), LOADED, ON_CPU)),
        (1, (line(26), line(26), ON_CPU)),
    )
)
SOURCES = {FILE: {24: "for step in range(9):", 25: "    get()", 26: "    update()", 90: "unrelated"}}


def test_a_line_has_the_time_of_all_paths_through_it_and_of_those_that_end_there() -> None:
    first, second = hot_files(replace(PROFILE, sources=SOURCES))

    assert [(one.file, one.weight_us, one.own_us, one.total_us) for one in (first, second)] == [
        (FILE, 10_000_000, 1_000_000, 10_000_000),
        (REWARDS, 6_000_000, 6_000_000, 10_000_000),
    ]
    assert [(one.number, one.text, one.weight_us, one.own_us, one.is_after_gap) for one in first.lines] == [
        (9, None, 3_000_000, 0, True),
        (24, "for step in range(9):", 0, 0, True),
        (25, "    get()", 6_000_000, 0, False),
        (26, "    update()", 4_000_000, 1_000_000, False),
    ]
    assert [(one.number, one.own_us) for one in second.lines] == [(9, 0), (12, 6_000_000)]
    assert second.share(second.weight_us) == 60.0


def test_the_lines_of_a_half() -> None:
    (found,) = hot_files(PROFILE, 1, halves(PROFILE)[1])

    assert (found.weight_us, found.lines[-1].weight_us) == (5_000_000, 4_000_000)


def test_of_many_lines_those_with_the_most_time_are_shown() -> None:
    turns = [(number, (line(10 * number), SLEEP)) for number in range(1, 400)]
    (found,) = hot_files(profile_of(in_turn(*turns)))

    assert len(found.lines) == MOST_LINES
    assert found.lines[0].number == 2000
    assert hot_files(profile_of([])) == []
