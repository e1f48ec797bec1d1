"""The timeline in the JSON Object Format of Chrome's trace viewer, for chrome://tracing and https://ui.perfetto.dev.

A node is a process and a worker a thread; a worker that runs several tasks at once has a thread for each lane. What
runs is a complete event, with the spans of ``dstack.span`` inside; what an attempt waits for is an asynchronous event,
as many overlap, with its phases inside. Arrows lead from callers to calls and along chains. Times are whole
microseconds since the first event, so that ends and beginnings that are equal remain so. Specification: "Trace Event
Format", Google.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from dstack.analysis.history.chains import AttemptChain
from dstack.analysis.history.slices import Phase, Slice, slices_of
from dstack.analysis.history.task_index import Attempt
from dstack.analysis.naming.names import bounds
from dstack.analysis.views.timeline import Mark, Timeline, Track
from dstack.version import __version__
from dstack.words import visible

Event = dict[str, object]
"""One row of ``traceEvents``."""
SHORTEST_US = 100
"""Shorter phases of waiting are left out: they are not visible, and most attempts have them."""
WAITS: Mapping[Phase, str] = {
    "arguments": "waits for arguments",
    "resources": "waits for resources",
    "sent": "waits for its worker",
    "queue": "waits for its actor",
}
FAILED = "terrible"
CHAIN_COLOURS = (
    "thread_state_running",
    "thread_state_iowait",
    "rail_response",
    "rail_animation",
    "rail_load",
    "thread_state_runnable",
    "startup",
    "generic_work",
)
"""Names of colours in chrome://tracing: an attempt that failed has the first, chains the others in turn."""


def chrome_trace(timeline: Timeline) -> bytes:
    """The trace as JSON."""
    snapshot, history = timeline.history.index.snapshot, timeline.history.history
    document = {
        "traceEvents": list(_Trace(timeline).events()),
        "displayTimeUnit": "ms",
        "otherData": {
            "program": f"dstack {__version__}",
            "ray_version": snapshot.ray_version,
            "address": snapshot.address,
            "began_at_unix_s": timeline.began_at,
            "asked_at_unix_s": history.asked_at,
            "attempts": len(timeline.attempts),
            "attempts_left_out": history.left_out,
            "attempts_dropped_by_ray": history.dropped,
            "clocks_agree": snapshot.has_one_time,
            "waits_shorter_than_us_left_out": SHORTEST_US,
        },
    }
    return msgspec.json.encode(document)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a slice is drawn: process, thread, and whole microseconds since the beginning."""

    pid: int
    tid: int
    began_us: int
    ended_us: int

    def within(self, us: int) -> int:
        """The time within the slice that is nearest; its end would belong to the next slice."""
        return max(self.began_us, min(us, self.ended_us - 1))


class _Trace:
    """Makes the events of one timeline, and numbers its processes, threads, and pairs of events."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        groups = dict.fromkeys((track.group, track.node_id) for track in timeline.tracks)
        self._pids = {group: number for number, group in enumerate(groups, 1)}
        self._tids: dict[str, int] = {}
        self._places: dict[int, _Place] = {}
        self._threads = 0
        self._pairs = 0

    def events(self) -> Iterator[Event]:
        """All events: names and slices by track, then arrows and marks."""
        for (group, _), pid in self._pids.items():
            yield _name("process_name", pid, 0, visible(group))
            yield _sort_index("process_sort_index", pid, 0, pid)
        for track in self._timeline.tracks:
            yield from self._track(track)
        yield from self._calls()
        yield from self._chain_arrows()
        yield from map(self._mark, self._timeline.marks)

    def _us(self, time: float) -> int:
        return max(0, round((time - self._timeline.began_at) * 1e6))

    def _pair(self) -> str:
        """An id that two events share."""
        self._pairs += 1
        return f"{self._pairs:#x}"

    # Slices

    def _track(self, track: Track) -> Iterator[Event]:
        pid = self._pids[track.group, track.node_id]
        for number, lane in enumerate(track.lanes or [[]]):
            self._threads += 1
            tid = self._threads
            self._tids.setdefault(track.key, tid)
            yield _name("thread_name", pid, tid, visible(track.title) + (f" ({number + 1})" if number else ""))
            yield _sort_index("thread_sort_index", pid, tid, tid)
            for one in lane:
                yield self._running(one, pid, tid)
                yield from self._spans(one)
        for attempt in track.attempts:
            yield from self._waiting(attempt, pid, self._tids[track.key])

    def _running(self, one: Slice, pid: int, tid: int) -> Event:
        place = _Place(pid, tid, self._us(one.began_at), self._us(one.ended_at))
        self._places[id(one.attempt)] = place
        chain = self._timeline.chain_of(one.attempt)
        event: Event = {
            "ph": "X",
            "cat": "running",
            "name": _title(one.attempt),
            "pid": pid,
            "tid": tid,
            "ts": place.began_us,
            "dur": place.ended_us - place.began_us,
            "args": _arguments(one, chain, self._timeline.mark_of.get(id(one.attempt))),
        }
        colour = _colour(one.attempt, chain)
        return {**event, "cname": colour} if colour else event

    def _spans(self, one: Slice) -> Iterator[Event]:
        """The spans of ``dstack.span`` within what runs, but those that end after the span around them."""
        place = self._places[id(one.attempt)]
        ends = [place.ended_us]
        for span in self._timeline.spans.of(one.attempt):
            begin, end = max(place.began_us, self._us(span.began_at)), min(place.ended_us, self._us(span.ended_at))
            while begin >= ends[-1] and len(ends) > 1:
                ends.pop()
            if begin <= end <= ends[-1]:
                ends.append(end)
                yield {
                    "ph": "X",
                    "cat": "span",
                    "name": visible(span.name) or "span",
                    "pid": place.pid,
                    "tid": place.tid,
                    "ts": begin,
                    "dur": end - begin,
                    "args": {"had_not_ended": True} if span.is_open else {},
                }

    def _waiting(self, attempt: Attempt, pid: int, tid: int) -> Iterator[Event]:
        """An asynchronous event for everything before it ran, with its phases inside."""
        phases = [one for one in slices_of(attempt, self._timeline.history.asked_at) if one.phase != "running"]
        times = [(WAITS[one.phase], self._us(one.began_at), self._us(one.ended_at)) for one in phases]
        shown = [(name, begin, end) for name, begin, end in times if end - begin >= SHORTEST_US]
        if not shown:
            return
        pair = self._pair()

        def event(ph: str, name: str, us: int) -> Event:
            return {"ph": ph, "cat": "waiting", "name": name, "id": pair, "pid": pid, "tid": tid, "ts": us}

        task = {"task_id": attempt.task.task_id, "attempt": attempt.task.attempt, "state": attempt.state}
        yield {**event("b", _title(attempt), shown[0][1]), "args": task}
        for name, begin, end in shown:
            yield event("b", name, begin)
            yield event("e", name, end)
        yield event("e", _title(attempt), shown[-1][2])

    # Arrows and marks

    def _calls(self) -> Iterator[Event]:
        """Arrows from callers to the calls that began."""
        for attempt in self._timeline.attempts:
            caller = self._timeline.history.caller(attempt)
            if caller is not None and caller is not attempt:
                submitted = attempt.submitted_at if attempt.submitted_at is not None else attempt.began_at
                yield from self._arrow("call", caller, attempt, self._us(submitted))

    def _chain_arrows(self) -> Iterator[Event]:
        """Arrows along chains, from the end of one step to the beginning of the next."""
        links = (link for chain in self._timeline.chains for link in chain.links if link.basis != "parent")
        for link in links:
            ended = link.maker.ended_at
            if ended is not None:
                yield from self._arrow("chain", link.maker, link.user, self._us(ended))

    def _arrow(self, kind: str, source: Attempt, target: Attempt, us: int) -> Iterator[Event]:
        begin, end = self._places.get(id(source)), self._places.get(id(target))
        if begin is None or end is None:
            return
        both: Event = {"cat": kind, "name": kind, "id": self._pair()}
        yield {**both, "ph": "s", "pid": begin.pid, "tid": begin.tid, "ts": begin.within(us)}
        yield {**both, "ph": "f", "bp": "e", "pid": end.pid, "tid": end.tid, "ts": end.began_us}

    def _mark(self, mark: Mark) -> Event:
        track = self._timeline.track_by_key[mark.track]
        return {
            "ph": "i",
            "s": "t",
            "cat": "wait in the snapshot",
            "name": visible(mark.text),
            "pid": self._pids[track.group, track.node_id],
            "tid": self._tids[track.key],
            "ts": self._us(mark.at),
            "args": {"vertex": str(mark.key), "lasts": bounds(mark.since)},
        }


def _name(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _sort_index(what: str, pid: int, tid: int, index: int) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"sort_index": index}}


def _title(attempt: Attempt) -> str:
    return visible(attempt.task.name) or ("driver" if attempt.task.kind == "DRIVER_TASK" else "task")


def _arguments(one: Slice, chain: AttemptChain | None, mark: Mark | None) -> Event:
    task = one.attempt.task
    known: Event = {
        "task_id": task.task_id,
        "attempt": task.attempt,
        "state": one.attempt.state,
        "actor_id": task.actor_id,
        "chain": chain.number if chain else None,
        "error": visible(task.error),
        "had_not_ended": one.is_open or None,
        "waits": visible(mark.text) if mark and one.is_open else None,
        "can_never_proceed": (mark is not None and mark.is_stuck and one.is_open) or None,
    }
    return {name: value for name, value in known.items() if value not in (None, "")}


def _colour(attempt: Attempt, chain: AttemptChain | None) -> str | None:
    if attempt.state == "failed":
        return FAILED
    return CHAIN_COLOURS[chain.number % len(CHAIN_COLOURS)] if chain else None
