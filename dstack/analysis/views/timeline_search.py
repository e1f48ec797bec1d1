"""The search in the rows of the timeline: by words, and by the ids of tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dstack.analysis.history.task_index import Attempt
from dstack.analysis.views.timeline_bars import Bars
from dstack.analysis.views.timeline_rows import RowTrack, TimelineRows

SHORTEST_ID = 6
HEX_DIGITS = frozenset("0123456789abcdef")
"""A word of at least so many of these digits may be a part of a task's id."""


class Search:
    """Finds the attempts with all words in the text of their label, or in the hex digits of their task's id."""

    def __init__(self, rows: TimelineRows, words: Sequence[str]) -> None:
        self._rows = rows
        self._has_words = [bytes(word in text for text in rows.texts) for word in words]
        self._ids = [word if len(word) >= SHORTEST_ID and not set(word) - HEX_DIGITS else "" for word in words]
        self._matching = bytes(map(all, zip(*self._has_words, strict=True))) if words else bytes([1]) * len(rows.texts)
        self._found = self._by_id() if any(self._ids) else None

    def _by_id(self) -> frozenset[int]:
        """The Python ids of the attempts that match, if words may be parts of a task's id."""
        ways = list(zip(self._has_words, self._ids, strict=True))
        return frozenset(
            id(attempt)
            for track in self._rows.tracks
            for attempt, label in zip(track.attempts, track.labels, strict=True)
            if all(has[label] or (digits and digits in attempt.task.task_id) for has, digits in ways)
        )

    def count(self, track: RowTrack) -> int:
        """The number of attempts of a track that match."""
        if self._found is not None:
            return sum(id(attempt) in self._found for attempt in track.attempts)
        return sum(count for label, count in track.counts.items() if self._matching[label])

    def has(self, attempt: Attempt) -> bool:
        """Whether an attempt matches."""
        if self._found is not None:
            return id(attempt) in self._found
        return bool(self._matching[self._rows.label_of(attempt)])

    def wanted(self, track: RowTrack) -> Callable[[Bars], bytes] | None:
        """Which bars match; None if all of the track do."""
        return None if self.count(track) == len(track.attempts) else self.matches

    def matches(self, bars: Bars) -> bytes:
        """A byte for each of the bars, 1 if it matches."""
        found = self._found
        if found is not None:
            return bytes(id(attempt) in found for attempt in bars.attempts)
        return bytes(map(self._matching.__getitem__, bars.labels))
