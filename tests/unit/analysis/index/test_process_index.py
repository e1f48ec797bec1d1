"""The words for polls."""

from __future__ import annotations

from dstack.analysis.index.process_index import CallRate, OwnTasks, PolledActors


def test_each_method_is_named_with_its_rate_and_how_long_it_is_known() -> None:
    rates = (CallRate("Buffer.size", 2.04, 180.0), CallRate("Status.get", 0.5))

    text = PolledActors(("a", "b"), rates).name

    assert text == "polls Buffer.size (2.0 calls per second for 3 min) and Status.get (0.5 calls per second)"


def test_a_loop_that_checks_its_own_tasks() -> None:
    assert OwnTasks().name == "polls its own tasks"
