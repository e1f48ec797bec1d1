"""The history of tasks as a timeline: a track for each process, with what its tasks waited for and when they ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from dstack.analysis.history.chains import AttemptChain, Chains, Pipeline, pipelines_of
from dstack.analysis.history.critical_path import CriticalPath, critical_path
from dstack.analysis.history.marked_spans import MarkedSpans
from dstack.analysis.history.run_model import RunModel
from dstack.analysis.history.slices import (
    NOTICED_LATE_S,
    Phase,
    Slice,
    in_lanes,
    overlap_s,
    running_slice,
    slices_of,
    trimmed,
)
from dstack.analysis.history.task_index import Attempt, HistoryIndex
from dstack.analysis.index import subjects
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import sentence
from dstack.model.diagnosis import Since, Vertex
from dstack.model.snapshot import Worker
from dstack.model.vertex_keys import Key
from dstack.words import grouped


@dataclass(frozen=True)
class Track:
    """One process, or attempts of one function that have no process; its slices are made when they are asked for.

    ``attempts`` are those that ran there, or will: the oldest first. ``worker_id`` and ``pid`` are None without a
    process, ``node_id`` also if the node is unknown. ``title`` is its name, ``group`` that of its node.
    """

    key: str
    title: str
    group: str
    node_id: str | None
    worker_id: str | None
    actor_id: str | None
    pid: int | None
    attempts: Sequence[Attempt] = field(repr=False)
    asked_at: float = field(repr=False)

    @cached_property
    def slices(self) -> Sequence[Slice]:
        """What ran there, by its beginning; slices of async and threaded actors overlap."""
        runs = (running_slice(attempt, self.asked_at) for attempt in self.attempts)
        found = sorted((one for one in runs if one), key=attrgetter("began_at"))
        is_in_turns = self.actor_id is None or overlap_s(found) <= NOTICED_LATE_S
        return trimmed(found) if is_in_turns else found

    @cached_property
    def lanes(self) -> Sequence[Sequence[Slice]]:
        """The slices in as few lanes as possible, so that none overlap; one lane where one task runs at a time."""
        return in_lanes(self.slices)


@dataclass(frozen=True)
class Mark:
    """A wait that the snapshot shows: on which track, at what time, of which attempt if its task is in the history.

    ``since`` says how long it has lasted at least and at most. What an attempt waited for earlier is not known.
    ``is_stuck`` says that the wait can never end.
    """

    track: str
    at: float
    vertex: Vertex = field(repr=False)
    attempt: Attempt | None = field(repr=False)
    is_stuck: bool
    _words: Callable[[Vertex], str] = field(repr=False, compare=False)

    @property
    def key(self) -> Key:
        """The vertex of the wait."""
        return self.vertex.key

    @property
    def since(self) -> Since | None:
        """How long it lasts."""
        return self.vertex.since

    @cached_property
    def text(self) -> str:
        """The sentence about the wait."""
        return self._words(self.vertex)


@dataclass(slots=True)
class Amount:
    """A number of attempts, and their seconds together."""

    attempts: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one more attempt."""
        self.attempts += 1
        self.seconds += seconds


@dataclass(frozen=True, slots=True)
class RangeSums:
    """What ran by function, the most time first, and what was waited for, in a part of the time; ``failed`` in it."""

    began_at: float
    ended_at: float
    busy: Mapping[str, Amount]
    waited: Mapping[Phase, Amount]
    failed: int

    @property
    def length_s(self) -> float:
        """How long it is."""
        return self.ended_at - self.began_at


class Timeline:
    """The timeline of a history; ``vertices`` are those of the diagnosis, for the waits at its end.

    ``stuck`` are those of them that can never proceed. With a ``job``, it has the attempts of that job only.
    """

    def __init__(
        self,
        history: HistoryIndex,
        vertices: Mapping[Key, Vertex] | None = None,
        *,
        stuck: Collection[Key] = (),
        job: str | None = None,
    ) -> None:
        self.history = history
        self.job = job
        self._vertices = vertices or {}
        self._stuck = stuck
        self._index = history.index

    @cached_property
    def attempts(self) -> Sequence[Attempt]:
        """All attempts, oldest first."""
        if self.job is None:
            return self.history.attempts
        return [attempt for attempt in self.history.attempts if attempt.task.job_id == self.job]

    @cached_property
    def spans(self) -> MarkedSpans:
        """The spans of ``dstack.span`` in its attempts."""
        return MarkedSpans(self.history)

    @cached_property
    def began_at(self) -> float:
        """The first time in it, in Unix seconds; that of the request if it is empty."""
        return self.attempts[0].began_at if self.attempts else self.history.asked_at

    @cached_property
    def ended_at(self) -> float:
        """The last time in it."""
        ends = (attempt.ended_at for attempt in self.attempts if attempt.ended_at is not None)
        return max((self.history.asked_at, *ends))

    def sums(self, began_at: float, ended_at: float, has: Callable[[Attempt], bool]) -> RangeSums:
        """Sums over a part of the time, of attempts for which a condition holds; without drivers, which always run."""
        busy: dict[str, Amount] = defaultdict(Amount)
        waited: dict[Phase, Amount] = defaultdict(Amount)

        def part_s(one: Slice) -> float:
            return min(one.ended_at, ended_at) - max(one.began_at, began_at)

        attempts = [one for one in self.attempts if one.task.kind != "DRIVER_TASK" and has(one)]
        counted = {id(one) for one in attempts}
        for one in (each for track in self.tracks for each in track.slices):
            if id(one.attempt) in counted and part_s(one) > 0:
                busy[one.attempt.task.name].add(part_s(one))
        for attempt in attempts:
            if attempt.began_at < ended_at and (attempt.started_at is None or attempt.started_at > began_at):
                for one in slices_of(attempt, self.history.asked_at):
                    if one.phase != "running" and part_s(one) > 0:
                        waited[one.phase].add(part_s(one))
        failed = sum(one.state == "failed" and began_at <= (one.ended_at or 0.0) <= ended_at for one in attempts)
        by_time = sorted(busy.items(), key=lambda item: -item[1].seconds)
        return RangeSums(began_at, ended_at, dict(by_time), waited, failed)

    def name_of(self, attempt: Attempt) -> str:
        """The function of an attempt; a driver has no function, so the name of its script."""
        worker = self._index.workers.get(self._place(attempt))
        return attempt.task.name or self._name(worker, [attempt], None)

    # Tracks

    @cached_property
    def tracks(self) -> Sequence[Track]:
        """All tracks: by node, the driver's first, then drivers before workers; at the end what has not started."""
        by_key = grouped((self._place(attempt), attempt) for attempt in self.attempts)
        tracks = [self._track(key, attempts) for key, attempts in by_key.items()]
        return sorted(tracks, key=self._order)

    @cached_property
    def track_by_key(self) -> Mapping[str, Track]:
        """The tracks by their keys."""
        return {track.key: track for track in self.tracks}

    def track_of(self, attempt: Attempt) -> Track:
        """The track of an attempt of this timeline."""
        return self.track_by_key[self._place(attempt)]

    def _place(self, attempt: Attempt) -> str:
        """The key of its track: of its worker, of the worker of its actor, or of its function if it has none."""
        task = attempt.task
        if task.kind == "DRIVER_TASK":
            return self._index.drivers.get(task.job_id) or f"driver of job {task.job_id}"
        if worker_id := task.worker_id or self._worker_of_creation(attempt):
            return worker_id
        actor = self._index.actors.get(task.actor_id or "")
        if attempt.state == "pending" and actor is not None and actor.worker_id in self._index.workers:
            return actor.worker_id or ""
        return f"{NOT_STARTED}: {task.name}"

    def _worker_of_creation(self, attempt: Attempt) -> str | None:
        """The worker that ran the constructor of an actor: that of its next call, as the GCS does not tell."""
        if attempt.task.kind != "ACTOR_CREATION_TASK" or attempt.started_at is None:
            return None
        calls = self._calls_of_actors.get(attempt.task.actor_id or "", ())
        later = (call for call in calls if (call.started_at or 0.0) >= (attempt.started_at or 0.0))
        if call := next(later, None):
            return call.task.worker_id
        actor = self._index.actors.get(attempt.task.actor_id or "")
        return actor.worker_id if actor and not calls else None

    @cached_property
    def _calls_of_actors(self) -> Mapping[str, Sequence[Attempt]]:
        """By actor: its calls that have started, oldest first."""
        found = grouped(
            (attempt.task.actor_id or "", attempt)
            for attempt in self.history.attempts
            if attempt.task.kind == "ACTOR_TASK" and attempt.task.worker_id and attempt.started_at is not None
        )
        return {actor_id: sorted(calls, key=lambda call: call.started_at or 0.0) for actor_id, calls in found.items()}

    def _track(self, key: str, attempts: Sequence[Attempt]) -> Track:
        worker = self._index.workers.get(key)
        ran = next((a for a in reversed(attempts) if a.task.worker_id), None)
        actor_id = (worker.actor_id if worker else None) or next(
            (a.task.actor_id for a in attempts if a.task.actor_id and a.task.worker_id), None
        )
        node_id = worker.node_id if worker else ran.task.node_id if ran else self._node_of_driver(attempts)
        pid = worker.pid if worker else ran.task.pid if ran else None
        is_process = worker is not None or ran is not None or attempts[0].task.kind == "DRIVER_TASK"
        return Track(
            key=key,
            title=self._title(worker, attempts, actor_id, pid) if is_process else attempts[0].task.name,
            group=self.node_title(node_id) if is_process else NOT_STARTED,
            node_id=node_id if is_process else None,
            worker_id=key if worker or ran else None,
            actor_id=actor_id,
            pid=pid,
            attempts=attempts,
            asked_at=self.history.asked_at,
        )

    def _node_of_driver(self, attempts: Sequence[Attempt]) -> str | None:
        """The node of the driver that one of the attempts is, if only one has its address."""
        job = self._index.jobs.get(attempts[0].task.job_id)
        ip = job.driver_ip if job else None
        there = [node.node_id for node in self._index.snapshot.nodes if node.ip == ip]
        return there[0] if len(there) == 1 else None

    def _title(self, worker: Worker | None, attempts: Sequence[Attempt], actor_id: str | None, pid: int | None) -> str:
        """``actor Trainer "left", rank 3, pid 7``; ``driver train.py, pid 8``; ``worker, pid 9``."""
        ranks = self._index.ranks(worker.worker_id).in_words if worker else ""
        parts = (self._name(worker, attempts, actor_id), ranks, f"pid {pid}" if pid else "")
        return ", ".join(part for part in parts if part)

    def _name(self, worker: Worker | None, attempts: Sequence[Attempt], actor_id: str | None) -> str:
        if actor_id:
            known = self._index.actors.get(actor_id)
            calls = (a.task.name for a in attempts if a.task.actor_id == actor_id)
            return names.actor(known) if known else names.actor_in_words(next(calls).partition(".")[0], "", actor_id)
        if worker:
            return names.process(subjects.worker(self._index, worker))
        first = attempts[0].task
        if first.kind != "DRIVER_TASK":
            return "worker"
        job = self._index.jobs.get(first.job_id)
        return f"driver {names.script(job.entrypoint)}" if job and job.entrypoint else f"driver of job {first.job_id}"

    def node_title(self, node_id: str | None) -> str:
        """``node 10.0.0.1``, or with the beginning of its id if it is not listed."""
        unlisted = f"node {names.short(node_id)}" if node_id else "node unknown"
        return self._node_names.get(node_id or "", unlisted)

    @cached_property
    def _node_names(self) -> Mapping[str, str]:
        return names.nodes(self._index.snapshot.nodes)

    def _order(self, track: Track) -> tuple[bool, int, bool, float, str]:
        nodes = list(self._index.nodes)
        node = nodes.index(track.node_id) if track.node_id in self._index.nodes else len(nodes)
        is_driver = track.attempts[0].task.kind == "DRIVER_TASK"
        return track.group == NOT_STARTED, node, not is_driver, track.attempts[0].began_at, track.key

    # Chains

    @cached_property
    def linked(self) -> Chains:
        """The links between attempts, and their chains."""
        return Chains(self.history, self.attempts)

    @property
    def chains(self) -> Sequence[AttemptChain]:
        """The chains of at least two attempts, oldest first."""
        return self.linked.chains

    def chain_of(self, attempt: Attempt) -> AttemptChain | None:
        """The chain that an attempt belongs to, None if it is linked to no other."""
        return self.linked.chain_of(attempt)

    @cached_property
    def pipelines(self) -> Sequence[Pipeline]:
        """The functions whose calls form chains, with the step that limits each of these pipelines."""
        slices = (one for track in self.tracks for one in track.slices)
        return pipelines_of(self.chains, slices, [mark.attempt for mark in self.mark_of.values() if mark.is_stuck])

    # The critical path

    @cached_property
    def run(self) -> RunModel:
        """The run as a model of what its calls and their callers waited for."""
        return RunModel(self.history, self.job)

    @cached_property
    def critical_path(self) -> CriticalPath | None:
        """What determined how long the run took, None without calls that have ended."""
        return critical_path(self.run)

    def is_critical(self, attempt: Attempt) -> bool:
        """Whether an attempt is on the critical path."""
        return self.critical_path is not None and id(attempt) in self.critical_path.attempts

    # Marks

    @cached_property
    def marks(self) -> Sequence[Mark]:
        """The waits at the time of the snapshot, of tasks, drivers and threads that have a track."""
        return list(self._marks())

    def _marks(self) -> Iterator[Mark]:
        at = self._index.snapshot.taken_at
        for vertex in self._vertices.values():
            if vertex.wait is None or not vertex.is_counted:
                continue
            attempt = self.history.latest.get(vertex.task_id or "") or self._driver_in(vertex)
            places = (vertex.worker_id, self._place(attempt) if attempt else None)
            for key in [place for place in places if place in self.track_by_key][:1]:
                yield Mark(key or "", at, vertex, attempt, vertex.key in self._stuck, self._sentence)

    def _driver_in(self, vertex: Vertex) -> Attempt | None:
        """The attempt of a driver, if this is its main thread."""
        worker = self._index.worker_of(vertex)
        track = self.track_by_key.get(vertex.worker_id or "")
        if worker is None or track is None or vertex.os_thread_id != worker.pid:
            return None
        return next((attempt for attempt in track.attempts if attempt.task.kind == "DRIVER_TASK"), None)

    @cached_property
    def mark_of(self) -> Mapping[int, Mark]:
        """By the Python id of an attempt that waits now: its wait, one that can never end if there are several."""
        marks = sorted(self.marks, key=lambda mark: mark.is_stuck)
        return {id(mark.attempt): mark for mark in marks if mark.attempt is not None}

    def _sentence(self, vertex: Vertex) -> str:
        return sentence(self._index, self._vertices, vertex).text


NOT_STARTED = "not started"
"""The group of tracks of attempts that have no worker."""
