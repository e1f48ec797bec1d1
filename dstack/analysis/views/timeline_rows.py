"""The rows of the timeline: tracks by worker, function or chain, each with its lanes and with what waited for it.

All rows of 100,000 attempts take a few seconds to arrange, so that each of them is then drawn in microseconds.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from dstack.analysis.history.marked_spans import as_attempt, with_depths
from dstack.analysis.history.slices import (
    ARGUMENTS,
    FAILED,
    FINISHED,
    QUEUE,
    RESOURCES,
    RUNNING,
    SENT,
    STUCK,
    WAITING,
    Bar,
    Bars,
    Levels,
    Phase,
    Slice,
    in_lanes,
    slices_of,
)
from dstack.analysis.history.task_index import Attempt
from dstack.analysis.views.timeline import Mark, Timeline
from dstack.words import plural

Grouping = Literal["worker", "function", "chain"]
GROUPINGS: tuple[Grouping, ...] = ("worker", "function", "chain")
KIND_OF_PHASE: dict[Phase, int] = {"arguments": ARGUMENTS, "resources": RESOURCES, "sent": SENT, "queue": QUEUE}
MOST_SPAN_LANES = 12
MOST_LANES = 200
"""Of a track with more at once, the other lanes are left out; its first row counts all."""
LARGE_TRACK = 1_000
"""The waits of so many attempts take milliseconds to arrange, and those of smaller tracks are arranged when drawn."""
OPENED_TRACKS = 10
"""So many tracks show their lanes and waits at first."""


@dataclass(frozen=True)
class TimelineRow:
    """One row: a heading, a lane of bars with the waits in its gaps, or the number of bars at each time.

    ``is_open`` says whether the rows below are shown, None if there are none. ``depth`` is 0 for a heading, 1 for the
    first row of a track, 2 for others.
    """

    key: str
    title: str
    depth: int
    fold: str = ""
    is_open: bool | None = None
    lane: Lane | None = field(default=None, repr=False)
    many: Levels | None = field(default=None, repr=False)
    queued: RowTrack | None = field(default=None, repr=False)
    marks: Sequence[Mark] = field(default=(), repr=False)
    wanted: Callable[[Bars], bytes] | None = field(default=None, repr=False)

    @cached_property
    def bars(self) -> Bars | None:
        """The bars of its lane."""
        return self._only(self.lane.bars) if self.lane else None

    @cached_property
    def gaps(self) -> Bars | None:
        """What the following attempt waited for, in the gaps between the bars of its lane."""
        return self._only(self.lane.gaps) if self.lane else None

    @cached_property
    def levels(self) -> Levels | None:
        """The bars whose number is drawn."""
        many = self.queued.waiting if self.queued else self.many
        return many.only(self.wanted(many.bars)) if many and self.wanted else many

    def _only(self, bars: Bars) -> Bars:
        return bars.only(self.wanted(bars)) if self.wanted else bars


@dataclass(frozen=True, slots=True)
class Lane:
    """Bars that do not overlap, and the waits in the gaps between them."""

    bars: Bars
    gaps: Bars


@dataclass(frozen=True)
class RowTrack:
    """The rows of a worker, function or chain. ``labels`` numbers the text by which each attempt is found.

    ``spans`` are the lanes of spans of ``dstack.span``, the outer ones first, drawn as attempts named after them.
    """

    key: str
    group: str
    title: str
    lanes: Sequence[Lane] = field(repr=False)
    lanes_left_out: int
    running: Levels | None = field(repr=False)
    marks: Sequence[Mark] = field(repr=False)
    attempts: Sequence[Attempt] = field(repr=False)
    node_id: str
    labels: Sequence[int] = field(repr=False)
    spans: Sequence[Lane] = field(repr=False)
    asked_at: float = field(repr=False)

    @property
    def group_key(self) -> str:
        """The key of its heading; nodes may have one address."""
        return f"group/{self.node_id}/{self.group}"

    @cached_property
    def waiting(self) -> Levels:
        """What its attempts waited for."""
        return Levels.of(
            Bar(one.began_at, one.ended_at, KIND_OF_PHASE[one.phase], attempt, label)
            for attempt, label in zip(self.attempts, self.labels, strict=True)
            for one in slices_of(attempt, self.asked_at)
            if one.phase != "running" and one.ended_at > one.began_at
        )

    @cached_property
    def counts(self) -> Mapping[int, int]:
        """How many of its attempts have the same label."""
        return Counter(self.labels)

    def find(self, attempt: Attempt) -> tuple[str, float]:
        """The key of the row that draws one of its attempts, and when it begins there."""
        for number, lane in enumerate(self.lanes):
            for one, began_at in zip(lane.bars.attempts, lane.bars.begins, strict=True):
                if one is attempt:
                    return f"{self.key}/{number}", began_at
        return f"{self.key}/waiting", attempt.began_at

    def rows(self, *, is_open: bool, wanted: Callable[[Bars], bytes] | None) -> Iterator[TimelineRow]:
        """Its rows: one if it is folded."""
        rows = list(self._rows(wanted))
        can_fold = is_open if len(rows) > 1 else None
        yield replace(rows[0], title=self.title, depth=1, fold=self.key, is_open=can_fold, marks=self.marks)
        if is_open:
            yield from rows[1:]

    def _rows(self, wanted: Callable[[Bars], bytes] | None) -> Iterator[TimelineRow]:
        """Without its title, marks and fold in the first one."""
        if self.running is not None:
            yield TimelineRow(f"{self.key}/running", "", 1, fold=self.key, many=self.running, wanted=wanted)
        for number, lane in enumerate(self.lanes):
            yield TimelineRow(f"{self.key}/{number}", f"lane {number + 1}", 2, self.key, lane=lane, wanted=wanted)
        for number, lane in enumerate(self.spans):
            yield TimelineRow(f"{self.key}/spans/{number}", "spans", 2, self.key, lane=lane, wanted=wanted)
        if self.lanes_left_out:
            left_out = f"{plural(self.lanes_left_out, 'more lane')} left out"
            yield TimelineRow(f"{self.key}/more", left_out, 2, self.key)
        if not self.lanes or any(one.began_at != one.started_at for one in self.attempts):
            yield TimelineRow(f"{self.key}/waiting", "waiting", 2, self.key, queued=self, wanted=wanted)


class TimelineRows:
    """All tracks of a timeline in one grouping, and the kinds of bars and marks that are drawn."""

    def __init__(self, timeline: Timeline, grouping: Grouping) -> None:
        self.timeline = timeline
        self.grouping = grouping
        self._labels: dict[tuple[str, str, str, str, str], int] = {}
        self.kinds = {STUCK if mark.is_stuck else WAITING for mark in timeline.marks}
        self._runs = {id(one.attempt): one for track in timeline.tracks for one in track.slices}
        self.tracks = list(self._tracks())

    @classmethod
    def prepared(cls, timeline: Timeline, grouping: Grouping) -> TimelineRows:
        """The rows, with the lookups that take more than milliseconds to make."""
        made = cls(timeline, grouping)
        _ = made.texts, made._track_of, made._failures
        return made

    def rows(self, folds: Mapping[str, bool], search: AttemptSearch | None = None) -> list[TimelineRow]:
        """The rows to show; ``folds`` says for headings and tracks whether they are open, if that was chosen."""
        is_few = len(self.tracks) <= OPENED_TRACKS
        found: list[TimelineRow] = []
        group = None
        for track in self.tracks:
            if search is not None and not search.count(track):
                continue
            if track.group_key != group:
                group = track.group_key
                found.append(TimelineRow(group, track.group, 0, fold=group, is_open=folds.get(group, True)))
            if folds.get(track.group_key, True):
                is_open = folds.get(track.key, is_few)
                found += track.rows(is_open=is_open, wanted=search.wanted(track) if search else None)
        return found

    @cached_property
    def texts(self) -> Sequence[str]:
        """By label: the words by which attempts are found."""
        titles = {track.key: f"{track.group} {track.title}" for track in self.timeline.tracks}
        return [
            " ".join((name, state, error_type, error, titles[key])).casefold()
            for key, name, state, error_type, error in self._labels
        ]

    def failures(self, search: AttemptSearch | None = None) -> list[Attempt]:
        """The failed attempts, by the time of their end; those that match a search."""
        if search is None:
            return self._failures
        return [attempt for attempt in self._failures if search.has(attempt)]

    @cached_property
    def _failures(self) -> list[Attempt]:
        failed = (one for track in self.tracks for one in track.attempts if one.state == "failed")
        return sorted(failed, key=lambda attempt: attempt.ended_at or attempt.began_at)

    def find(self, attempt: Attempt) -> tuple[RowTrack, str, float] | None:
        """The track of an attempt, the key of the row that draws it, and when that begins."""
        track = self.track_of(attempt)
        return (track, *track.find(attempt)) if track else None

    def track_of(self, attempt: Attempt) -> RowTrack | None:
        """The track of an attempt."""
        return self._track_of.get(id(attempt))

    @cached_property
    def _track_of(self) -> Mapping[int, RowTrack]:
        return {id(attempt): track for track in self.tracks for attempt in track.attempts}

    # Tracks

    def _tracks(self) -> Iterator[RowTrack]:
        groups: dict[_Place, list[tuple[Attempt, int]]] = defaultdict(list)
        marks: dict[_Place, list[Mark]] = defaultdict(list)
        for track in self.timeline.tracks:
            place = _Place(track.key, track.group, track.title, track.node_id or "")
            for attempt in track.attempts:
                groups[self._place(attempt, place)].append((attempt, self._label(track.key, attempt)))
        for mark in self.timeline.marks:
            track = self.timeline.track_by_key[mark.track]
            place = _Place(track.key, track.group, track.title, track.node_id or "")
            if mark.attempt is not None or self.grouping == "worker":
                marks[self._place(mark.attempt, place)].append(mark)
        places = list(groups) if self.grouping == "worker" else sorted(groups, key=_order)
        return (self._track(place, groups[place], marks.get(place, ())) for place in places)

    def _place(self, attempt: Attempt | None, place: _Place) -> _Place:
        """Key, heading and title of the track of an attempt in this grouping."""
        if attempt is None or self.grouping == "worker":
            return place
        chain = self.timeline.chain_of(attempt) if self.grouping == "chain" else None
        if chain is None:
            is_driver = attempt.task.kind == "DRIVER_TASK"
            name, number = self.timeline.name_of(attempt), 0 if is_driver else sys.maxsize
            rest = "functions" if self.grouping == "function" else "calls in no chain"
            return _Place(f"function {name}", "drivers" if is_driver else rest, name, number=number)
        return _Place(f"chain {chain.number}", "chains", f"chain {chain.number}", number=chain.number)

    def label_of(self, attempt: Attempt) -> int:
        """The number of the text by which an attempt is found."""
        return self._label(self.timeline.track_of(attempt).key, attempt)

    def _label(self, track: str, attempt: Attempt) -> int:
        task = attempt.task
        text = (track, task.name, attempt.state, task.error_type, task.error)
        return self._labels.setdefault(text, len(self._labels))

    def _track(self, place: _Place, attempts: Sequence[tuple[Attempt, int]], marks: Sequence[Mark]) -> RowTrack:
        asked_at = self.timeline.history.asked_at
        label_of = {id(attempt): label for attempt, label in attempts}
        phases = {id(attempt): list(slices_of(attempt, asked_at)) for attempt, _ in attempts}
        running = [self._runs[id(attempt)] for attempt, _ in attempts if id(attempt) in self._runs]
        running += _unstarted_failures(attempts)
        in_order = in_lanes(running)
        waits = (one for found in phases.values() for one in found if one.phase != "running" and one.duration_s > 0)
        self.kinds |= {self._kind(one) for one in running} | {KIND_OF_PHASE[one.phase] for one in waits}

        def bar(one: Slice) -> Bar:
            return Bar(one.began_at, one.ended_at, self._kind(one), one.attempt, label_of[id(one.attempt)])

        def lane(slices: Sequence[Slice]) -> Lane:
            gaps = [bar(gap) for gap in _gaps(slices, phases)]
            return Lane(Bars.of(list(map(bar, slices))), Bars.of(gaps))

        made = RowTrack(
            key=place.key,
            group=place.group,
            title=place.title,
            node_id=place.node_id,
            lanes=list(map(lane, in_order[:MOST_LANES])),
            lanes_left_out=max(0, len(in_order) - MOST_LANES),
            running=Levels.of(map(bar, running)) if len(in_order) > 1 else None,
            marks=marks,
            attempts=[attempt for attempt, _ in attempts],
            labels=[label for _, label in attempts],
            spans=list(self._span_lanes([attempt for attempt, _ in attempts]))[:MOST_SPAN_LANES],
            asked_at=asked_at,
        )
        if len(attempts) > LARGE_TRACK:
            _ = made.waiting  # in this thread, as it takes too long for a row that is being drawn
        return made

    def _span_lanes(self, attempts: Iterable[Attempt]) -> Iterator[Lane]:
        """Lanes of spans: those that are in no other first."""
        by_depth: dict[int, list[Slice]] = defaultdict(list)
        labels: dict[int, int] = {}
        for attempt in attempts:
            for depth, span in with_depths(self.timeline.spans.of(attempt)):
                drawn = as_attempt(attempt, span)
                labels[id(drawn)] = self._label(self.timeline.track_of(attempt).key, drawn)
                by_depth[depth].append(Slice(drawn, "running", span.began_at, span.ended_at, span.is_open))
        for _, spans in sorted(by_depth.items()):
            for lane in in_lanes(spans):
                bars = [
                    Bar(one.began_at, one.ended_at, self._kind(one), one.attempt, labels[id(one.attempt)])
                    for one in lane
                ]
                yield Lane(Bars.of(bars), Bars.of([]))

    def _kind(self, one: Slice) -> int:
        """What a slice is drawn as."""
        if one.phase != "running":
            return KIND_OF_PHASE[one.phase]
        if one.attempt.state == "failed":
            return FAILED
        if not one.is_open:
            return FINISHED
        mark = self.timeline.mark_of.get(id(one.attempt))
        return RUNNING if mark is None else STUCK if mark.is_stuck else WAITING


def link(timeline: Timeline) -> None:
    """Compute the chains, pipelines and critical path of a timeline, which takes seconds for 100,000 attempts."""
    _ = timeline.pipelines, timeline.critical_path
    for attempt in timeline.attempts[:1]:
        timeline.chain_of(attempt)


class _Place(NamedTuple):
    """The track of some attempts: its key, heading and title; ``number`` is that of its chain."""

    key: str
    group: str
    title: str
    node_id: str = ""
    number: int = 0


def _order(place: _Place) -> tuple[int, str]:
    return place.number, place.title


def _unstarted_failures(attempts: Iterable[tuple[Attempt, int]]) -> list[Slice]:
    """The failures of attempts that never ran, which have no duration."""
    return [
        Slice(attempt, "running", attempt.ended_at, attempt.ended_at)
        for attempt, _ in attempts
        if attempt.state == "failed" and attempt.started_at is None and attempt.ended_at is not None
    ]


def _gaps(lane: Sequence[Slice], phases: Mapping[int, Sequence[Slice]]) -> Iterator[Slice]:
    """What the attempts of a lane waited for after the one before them in the lane had ended."""
    free_at = 0.0
    for one in lane:
        for wait in phases[id(one.attempt)]:
            began_at, ended_at = max(free_at, wait.began_at), min(wait.ended_at, one.began_at)
            if wait.phase != "running" and began_at < ended_at:
                yield Slice(wait.attempt, wait.phase, began_at, ended_at)
        free_at = one.ended_at


SHORTEST_ID = 6
HEX_DIGITS = frozenset("0123456789abcdef")
"""A word of at least so many of these digits may be a part of a task's id."""


class AttemptSearch:
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
