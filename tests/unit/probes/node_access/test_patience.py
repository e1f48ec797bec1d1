"""How long slow nodes are awaited once most have answered."""

from __future__ import annotations

import pytest

from dstack.probes.node_access import remote_probes
from dstack.probes.node_access.remote_probes import Patience


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(remote_probes, "time", clock)
    return clock


@pytest.mark.parametrize(
    ("nodes", "most"),
    [(2, 1), (3, 2), (9, 8), (10, 9), (20, 18), (1000, 900)],
)
def test_most_nodes_are_nine_tenths_or_all_but_one(clock: Clock, nodes: int, most: int) -> None:
    patience = Patience(nodes, deadline=130.0)
    clock.now = 102.0

    patience.note(most - 1)
    assert (patience.until, patience.usual_s) == (130.0, None)
    patience.note(most)
    assert patience.usual_s == 2.0
    assert patience.until < 130.0


@pytest.mark.parametrize(
    ("nodes", "most_after_s", "then_s"),
    [
        (1000, 2.0, 2.0),  # as long again
        (1000, 0.1, 1.0),  # a thirtieth of the timeout
        (20, 0.1, 1.0),
        (10, 0.1, 2.0),
        (4, 0.1, 5.0),
        (2, 0.1, 10.0),
        (4, 20.0, 10.0),  # never beyond the deadline
    ],
)
def test_late_nodes_get_as_long_again_or_a_share_of_the_timeout(
    clock: Clock, nodes: int, most_after_s: float, then_s: float
) -> None:
    patience = Patience(nodes, deadline=130.0)
    clock.now += most_after_s

    patience.note(nodes - 1)

    assert patience.until == pytest.approx(100.0 + most_after_s + then_s)


def test_later_answers_change_nothing(clock: Clock) -> None:
    patience = Patience(100, deadline=130.0)
    clock.now = 103.0
    patience.note(90)
    clock.now = 105.5
    patience.note(99)

    assert (patience.until, patience.usual_s) == (106.0, 3.0)


@pytest.mark.parametrize(("nodes", "until"), [(1000, 105.0), (20, 105.0), (19, 108.0)])
def test_nodes_that_were_late_before_are_hardly_awaited_among_many(clock: Clock, nodes: int, until: float) -> None:
    patience = Patience(nodes, deadline=130.0)
    clock.now = 104.0

    patience.note(nodes - 1, are_others_late=True)

    assert patience.until == until


def test_nodes_that_were_late_before_are_awaited_while_others_are_missing(clock: Clock) -> None:
    patience = Patience(100, deadline=130.0)
    clock.now = 104.0

    patience.note(89, are_others_late=True)
    assert patience.until == 130.0
    patience.note(95)
    assert patience.until == 108.0


def test_the_only_node_has_the_whole_timeout(clock: Clock) -> None:
    assert Patience(1, deadline=130.0).until == 130.0


def test_a_late_node_is_reported_with_what_is_usual(clock: Clock) -> None:
    patience = Patience(100, deadline=130.0)
    clock.now = 101.0
    patience.note(95)
    clock.now = 102.0

    late, unreached = patience.why_late(is_reached=True), patience.why_late(is_reached=False)

    assert (late.cause, unreached.cause) == ("timeout", "unreachable")
    assert late.reason == "its probe did not answer within 2.0 s; most nodes did within 1.0 s"
    assert unreached.reason == "no connection within 2.0 s; most nodes answered within 1.0 s"


def test_a_node_that_fails_does_not_say_how_long_an_answer_takes(clock: Clock) -> None:
    patience = Patience(2, deadline=130.0)
    clock.now = 100.3

    patience.note(0, failed=1)
    assert (patience.until, patience.usual_s) == (130.0, None)
    patience.note(1, failed=1)
    assert patience.usual_s == pytest.approx(0.3)


@pytest.mark.parametrize(("failed", "most"), [(0, 90), (50, 45), (98, 1)])
def test_most_nodes_are_most_of_those_that_have_not_failed(clock: Clock, failed: int, most: int) -> None:
    patience = Patience(100, deadline=130.0)
    clock.now = 102.0

    patience.note(most - 1, failed)
    assert patience.usual_s is None
    patience.note(most, failed)
    assert patience.usual_s == 2.0
