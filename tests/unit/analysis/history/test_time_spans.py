"""Unions of time spans, against sets of moments."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.history.time_spans import Span, Spans

spans = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))
many = st.lists(spans, max_size=25)


def moments(*parts: Span) -> set[int]:
    return {moment for begin, end in parts for moment in range(begin, end)}


def union_of(parts: list[Span]) -> Spans:
    made = Spans()
    for one in parts:
        made.add(one)
    return made


def require_sound(union: Spans) -> None:
    found = list(union)
    assert found == sorted(found)
    assert all(end < begin for (_, end), (begin, _) in pairwise(found)), "touching spans are one"


@given(many, spans)
def test_added_spans_and_their_gaps(parts: list[Span], span: Span) -> None:
    union = union_of(parts)

    require_sound(union)
    assert moments(*union) == moments(*parts)
    gaps = union.gaps_in(span)
    assert moments(*gaps) == moments(span) - moments(*parts)
    assert all(begin < end for begin, end in gaps)


@given(st.lists(many, max_size=6))
def test_a_union_of_unions(parts: list[list[Span]]) -> None:
    union = Spans.union(map(union_of, parts))

    require_sound(union)
    assert moments(*union) == moments(*(span for part in parts for span in part))


@given(st.lists(spans, min_size=20, max_size=40), spans)
def test_a_few_spans_join_a_large_union(parts: list[Span], span: Span) -> None:
    large = union_of([(10 * begin, 10 * begin + 5) for begin, _ in parts])
    before = list(large)

    union = Spans.union([union_of([span]), large])

    require_sound(union)
    assert moments(*union) == moments(*before, span)
