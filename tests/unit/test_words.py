"""Sizes and durations in words."""

from __future__ import annotations

import pytest

from dstack.words import short_duration, size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (3_000_003, "2.9 MiB"),
        (15_000_830, "14 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (3 * 2**40, "3.0 TiB"),
    ],
)
def test_sizes_have_a_unit_and_few_digits(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.00996, "10 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (104.0, "1 min 44 s"),
    ],
)
def test_short_durations(seconds: float, words: str) -> None:
    assert short_duration(seconds) == words
