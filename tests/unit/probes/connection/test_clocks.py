"""Whose clock is known to differ, and what is said of it."""

from __future__ import annotations

import pytest

from dstack.model import Node
from dstack.probes.connection.clocks import ahead_s, clock_notes


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ((100.5, 101.5), 0.0),
        ((98.0, 99.0), -2.0),
        ((104.0, 105.0), 3.0),
        ((101.9, 101.9), 0.0),
        ((3700.0, 3702.0), 3600.0),
    ],
)
def test_the_round_trip_is_subtracted_from_a_clock_difference(theirs: tuple[float, float], expected: float) -> None:
    assert ahead_s(theirs, asked_at=100.0, answered_at=102.0) == expected


def test_a_note_names_the_host_and_its_clock_difference() -> None:
    nodes = [Node("a", "10.0.0.1", clock_ahead_s=ahead) for ahead in (None, 0.0, 2.0, -61.2, 3600.0)]

    late, early = clock_notes(nodes)

    assert "10.0.0.1 is 61 s behind the clock of this host" in late
    assert "10.0.0.1 is 3600 s ahead of the clock of this host" in early
