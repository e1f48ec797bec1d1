"""A recording: the stacks of a cluster's threads, sampled for some time, each with the number of its samples.

It is joined from parts, which come from all nodes about once a second.

Times that end in ``_at`` are Unix seconds. Identifiers are those of :mod:`dstack.observed.processes`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from dstack.model.snapshot import Model
from dstack.observed.calls import Int, Natural, UnixTime
from dstack.observed.node import Count, Failure, RecordingCoverage
from dstack.observed.processes import Frame
from dstack.words import plural

SCHEMA = "dstack.recording"
VERSION = (1, 0)
"""Major and minor version of the file format. A reader takes any minor of its own major."""
MAX_SIZE = 10_000_000
"""Maximum number of frames in the stacks of all counts; half of what a recording file may have."""


class RecordingOptions(Model, frozen=True):
    """How it was recorded.

    ``idle`` includes threads that neither ran nor were ready to run; ``gil`` has only threads that held the global
    interpreter lock; ``native`` includes C and C++ frames. ``job_id`` is the only job that was recorded, None for all.
    """

    idle: bool = False
    gil: bool = False
    native: bool = False
    job_id: str | None = None


class RecordedThread(Model, frozen=True, kw_only=True):
    """A thread while it ran one kind of work: a thread of a worker that runs several functions has one for each.

    ``node`` and ``kind`` are names for users, such as ``node 10.0.0.1``, and ``actor Trainer``, ``task load``, ``driver
    train.py`` or ``worker``. ``name`` is the name of the actor, if it has one. ``rank`` is the rank in a distributed
    run. ``os_thread_id`` is 0 if unknown.
    """

    worker_id: str
    node_id: str
    pid: Int
    node: str
    kind: str
    name: str = ""
    job_id: str | None = None
    rank: Natural | None = None
    os_thread_id: Int = 0
    thread_name: str = ""


class Recording(Model, frozen=True, kw_only=True, omit_defaults=False):
    """The samples of all processes of a cluster over ``duration_s``.

    ``stacks`` are indices of ``frames``, leaf first. ``rate_hz`` is the wanted rate; ``coverage`` has how many samples
    were taken.
    """

    schema: str = SCHEMA
    version: tuple[Int, Int] = VERSION
    dstack_version: str
    address: str
    ray_version: str
    began_at: UnixTime
    duration_s: float = 0.0
    rate_hz: float = 0.0
    options: RecordingOptions = RecordingOptions()
    frames: tuple[Frame, ...] = ()
    stacks: tuple[tuple[Natural, ...], ...] = ()
    threads: tuple[RecordedThread, ...] = ()
    counts: tuple[Count, ...] = ()
    coverage: RecordingCoverage = RecordingCoverage()
    failures: tuple[Failure, ...] = ()

    def frames_of(self, count: Count) -> tuple[Frame, ...]:
        """The frames of a count's stack, leaf first."""
        return tuple(self.frames[index] for index in self.stacks[count.stack])


class RecordingPart(Model, frozen=True):
    """The samples of some nodes in one round, and the workers that were read in it."""

    recording: Recording
    worker_ids: tuple[str, ...] = ()


class JoinedRecording:
    """A recording that grows with each part."""

    def __init__(self, first: Recording) -> None:
        self._first = first
        self._frames: dict[Frame, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._threads: dict[RecordedThread, int] = {}
        self._counts: Counter[tuple[int, int, bool]] = Counter()
        self._failures: dict[tuple[str | None, str, str], Failure] = {}
        self._worker_ids: set[str] = set()
        self._coverage = first.coverage
        self._size = 0
        self.add(RecordingPart(recording=first))

    @property
    def in_words(self) -> str:
        """How much it has so far, for a line of progress."""
        return plural(self._counts.total(), "sample")

    def add(self, part: RecordingPart) -> None:
        """Add the samples of a valid part; those beyond the limit are only counted."""
        recording = part.recording
        frames = [self._frames.setdefault(frame, len(self._frames)) for frame in recording.frames]
        stacks = [tuple(frames[index] for index in stack) for stack in recording.stacks]
        threads = [self._threads.setdefault(thread, len(self._threads)) for thread in recording.threads]
        left_out = 0
        for count in recording.counts:
            stack = stacks[count.stack]
            known = self._stacks.get(stack)
            if known is None or (threads[count.thread], known, count.is_running) not in self._counts:
                if self._size + len(stack) > MAX_SIZE:
                    left_out += count.samples
                    continue
                self._size += len(stack)
                known = self._stacks.setdefault(stack, len(self._stacks))
            self._counts[threads[count.thread], known, count.is_running] += count.samples
        self._note(part, left_out)

    def _note(self, part: RecordingPart, left_out: int) -> None:
        self._worker_ids.update(part.worker_ids)
        for failure in part.recording.failures:
            self._failures.setdefault((failure.worker_id or failure.node_id, failure.stage, failure.reason), failure)
        if part.recording is not self._first:
            self._coverage = _sum([self._coverage, part.recording.coverage], left_out)

    def whole(self, duration_s: float) -> Recording:
        """The recording so far, over ``duration_s``."""
        return replace(
            self._first,
            duration_s=duration_s,
            frames=tuple(self._frames),
            stacks=tuple(self._stacks),
            threads=tuple(self._threads),
            counts=tuple(
                Count(thread=thread, stack=stack, samples=samples, is_running=is_running)
                for (thread, stack, is_running), samples in self._counts.items()
            ),
            coverage=dataclasses.replace(self._coverage, processes=len(self._worker_ids)),
            failures=tuple(self._failures.values()),
        )


def _sum(parts: Iterable[RecordingCoverage], left_out: int) -> RecordingCoverage:
    parts = list(parts)
    return RecordingCoverage(
        wanted=sum(one.wanted for one in parts),
        taken=sum(one.taken for one in parts),
        torn=sum(one.torn for one in parts),
        cut=sum(one.cut for one in parts),
        left_out=sum(one.left_out for one in parts) + left_out,
        sampler_cpu_s=round(sum(one.sampler_cpu_s for one in parts), 6),
        lowest_rate_hz=min((one.lowest_rate_hz for one in parts if one.lowest_rate_hz), default=0.0),
    )
