"""The construction of the graph: each step finds the parts that it needs."""

from __future__ import annotations

from typing import get_args

from dstack.analysis.graph.wait_graph import STEPS, Part


def test_each_step_comes_after_the_parts_that_it_needs() -> None:
    there: set[Part] = set()
    for step in STEPS:
        assert set(step.needs) <= there, step.adds
        there.add(step.adds)

    assert there == set(get_args(Part))
