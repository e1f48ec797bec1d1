"""Unions of time spans, in microseconds: when at least one of many tasks runs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Span = tuple[int, int]
"""Begin and end."""
FEW = 16
"""Spans are inserted one by one into a union that has so many times more of them; else all are sorted."""


class Spans:
    """Disjoint spans in order.

    They are kept from the last to the first with their signs changed: callers begin before what they call, so a span
    that is added usually comes last, and moves no others.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._begins)

    def __iter__(self) -> Iterator[Span]:
        """The spans, the first one first."""
        return ((-end, -begin) for begin, end in zip(reversed(self._begins), reversed(self._ends), strict=True))

    @classmethod
    def union(cls, parts: Iterable[Spans], single: Iterable[Span] = ()) -> Spans:
        """The union of several and of single spans.

        It is built into the largest of them, so that merging up a deep tree stays cheap.
        """
        ordered = list(parts)
        if singles := sorted((-end, -begin) for begin, end in single):
            ordered.append(cls._joined(singles))
        if len(ordered) < 2:
            return ordered[0] if ordered else cls()
        ordered.sort(key=len)
        largest = ordered.pop()
        added = sum(map(len, ordered))
        if added * FEW >= len(largest):
            pairs = (pair for part in (*ordered, largest) for pair in zip(part._begins, part._ends, strict=True))
            return cls._joined(sorted(pairs)) if added else largest
        for part in ordered:
            for span in part:
                largest.add(span)
        return largest

    @classmethod
    def _joined(cls, ordered: Iterable[Span]) -> Spans:
        """Spans with changed signs, in order; those that overlap or touch become one."""
        made = cls()
        begins, ends = made._begins, made._ends
        for begin, end in ordered:
            if ends and begin <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                begins.append(begin)
                ends.append(end)
        return made

    def add(self, span: Span) -> None:
        """Add one; those that it overlaps or touches become one with it."""
        begin, end = -span[1], -span[0]
        first, behind = bisect_left(self._ends, begin), bisect_right(self._begins, end)
        if first < behind:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[behind - 1])
        self._begins[first:behind] = [begin]
        self._ends[first:behind] = [end]

    def gaps_in(self, span: Span) -> tuple[Span, ...]:
        """The parts of a span that are in none of these; empty parts are left out."""
        begin, end = -span[1], -span[0]
        first, behind = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        if first >= behind:
            return (span,) if begin < end else ()
        edges = [begin]
        for at in range(first, behind):
            edges += (self._begins[at], self._ends[at])
        edges.append(end)
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return tuple((-right, -left) for left, right in pairs if left < right)
