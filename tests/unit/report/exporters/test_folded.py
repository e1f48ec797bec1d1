"""Folded stacks are lines that no name can break."""

from __future__ import annotations

import re

from hypothesis import given

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks
from dstack.report.exporters.folded import folded
from dstack.words import UNSEEN
from tests.fuzzing.effort import examples
from tests.unit.report.exporters.stacks import STACKS, TWO_RANKS

A_LINE = re.compile(r"(?P<names>.*\S) (?P<weight>[0-9]+)")
SECOND_NUMBER = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")
"""How flamegraph.pl recognises the first of two numbers of a comparison."""


def one(*stacks: WeightedStack) -> str:
    return folded(WeightedStacks("", "samples", stacks)).decode()


def test_each_stack_is_a_line_with_its_groups_and_frames() -> None:
    assert folded(TWO_RANKS).decode() == (
        "actor Trainer;rank 0;train (app/train.py:12);ray.get (ray/worker.py:40) 3\n"
        "actor Trainer;rank 1;train (app/train.py:12) 5\n"
    )


def test_equal_lines_are_added_and_stacks_without_weight_left_out() -> None:
    step = PathStep("f", "a.py", 1, "f", "user")
    other = PathStep("f", "a.py", 1, "g", "ray")

    assert one(*(WeightedStack((), (place,), 2) for place in (step, other))) == "f (a.py:1) 4\n"
    assert one(WeightedStack((), (step,), 0)) == ""


def test_a_name_that_ends_in_a_number_is_not_read_as_a_weight() -> None:
    assert one(WeightedStack(("rank 3",), (), 4)) == "rank 3;(self) 4\n"
    assert one(WeightedStack((), (PathStep("step 2"),), 4)) == "step 2;(self) 4\n"
    assert one(WeightedStack((), (), 4)) == "(self) 4\n"


def test_separators_and_line_ends_in_names_are_escaped() -> None:
    assert one(WeightedStack(("a;b",), (PathStep("f\n1", "x.py", 2, "f"),), 1)) == "a\\x3bb;f\\n1 (x.py:2) 1\n"


@examples(200)
@given(STACKS)
def test_weights_are_conserved_and_hostile_names_break_no_line(stacks: WeightedStacks) -> None:
    text = folded(stacks).decode()

    lines = text.splitlines()
    assert "".join(f"{line}\n" for line in lines) == text
    assert not UNSEEN.search("".join(lines))
    found = [match for line in lines if (match := A_LINE.fullmatch(line))]
    assert len(found) == len(lines)
    assert not any(SECOND_NUMBER.match(match["names"]) for match in found)
    assert sum(int(match["weight"]) for match in found) == stacks.weight
    depths = {len(match["names"].split(";")) for match in found}
    assert depths <= {len(one.groups) + len(one.frames) + more for one in stacks.stacks for more in (0, 1)}
