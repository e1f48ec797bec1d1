"""Stacks with weights: equal ones are one, nothing is lost, and executions count once each."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.stacks.app_threads import Execution, PathStep
from dstack.analysis.stacks.weighted_stacks import WeightedStacks, stacks_of
from tests.unit.analysis.stacks.test_stack_tree import execution, executions


def step(name: str) -> PathStep:
    return PathStep(name, "app.py", 1, name)


@given(executions())
def test_each_execution_counts_once_below_its_groups(all_executions: list[Execution]) -> None:
    stacks = stacks_of("now", all_executions, by=("node", "kind"))

    expected = Counter(((one.node, one.kind), one.path) for one in all_executions)
    assert {(one.groups, one.frames): one.weight for one in stacks.stacks} == expected
    assert stacks.weight == len(all_executions)
    assert stacks.unit == "executions"


@given(st.lists(st.tuples(st.text("ab", max_size=2), st.text("fg", max_size=3), st.integers(0, 5))))
def test_equal_stacks_are_summed_and_weightless_ones_left_out(drawn: list[tuple[str, str, int]]) -> None:
    stacks = WeightedStacks.summed(
        "drawn", "samples", (((group,), tuple(map(step, frames)), weight) for group, frames, weight in drawn)
    )

    assert stacks.weight == sum(weight for _, _, weight in drawn)
    assert all(stack.weight > 0 for stack in stacks.stacks)
    assert len({(stack.groups, stack.frames) for stack in stacks.stacks}) == len(stacks.stacks)


def test_without_groups_only_stacks_distinguish() -> None:
    stacks = stacks_of("now", [execution(1, "ab"), execution(2, "ab"), execution(3, "a")], by=())

    assert [(stack.groups, len(stack.frames), stack.weight) for stack in stacks.stacks] == [((), 1, 1), ((), 2, 2)]
