"""The text of a profile: its chains and the steps of its loop."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from dstack.report.profile_text import print_profile
from tests.unit.analysis.stacks.made_profiles import in_turn, profile_of
from tests.unit.analysis.stacks.test_iterations import step


def text_of(*seconds: float) -> str:
    console = Console(file=StringIO(), width=200, record=True)
    turns = [each for one in seconds for each in step(one)]
    print_profile(console, profile_of(in_turn(*turns)))
    return console.export_text()


def test_the_steps_of_a_loop_follow_the_chains() -> None:
    text = text_of(2, 2, 2, 8, 2, 2)

    assert " 1.  75.0 %  18 s  Reward.score → Reward.model (train.py:9) → time.sleep" in text
    chains, _, steps = text.partition("Steps: ")
    assert "from driver train.py → main (train.py:25) → ray.get" in chains
    assert steps.splitlines() == [
        "4 iterations of main (train.py:25-26) in driver train.py: median 3.0 s, longest 9.0 s, 9.0 s after the begin",
        "    The longest one had 8.0 s instead of 2.0 s in Reward.score → Reward.model (train.py:9) → time.sleep",
    ]


def test_without_a_loop_there_are_no_steps() -> None:
    assert "Steps" not in text_of(2, 2)
