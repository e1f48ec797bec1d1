"""Records a cluster: the samples of all nodes, each with the worker, actor or task that ran.

:func:`main` does so in a child process, for a :class:`dstack.collecting.recorder.Recorder`; a part is a round of one
node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.shown_frames import SPANS_FILE
from dstack.analysis.naming import names
from dstack.analysis.naming.names import find_job
from dstack.analysis.stacks.app_threads import ENTRIES, kind_of
from dstack.collecting.recorder import serve
from dstack.model.recording import RecordedThread, Recording, RecordingOptions, RecordingPart
from dstack.model.snapshot import Sample, Snapshot, Worker
from dstack.observed.node import Count, Failure, RecordedRound, SampledThread
from dstack.observed.processes import Frame
from dstack.probes.cluster_recorder import ClusterRecorder, NodeRound
from dstack.probes.node import wire
from dstack.probes.node_access.answers import MALFORMED, NodeFailure
from dstack.probes.node_access.node_readers import node_failure
from dstack.processes.child import Parent

ROUND_S = 1.0
WRAPPERS = ("ray/_private/", "ray/util/tracing/", SPANS_FILE)
"""Folders of Ray's frames between the loop of a worker and the function of the task that it executes, and spans."""


class RecordingSession:
    """One recording, from the connection to the last round; a context manager.

    ``job`` is what the user called the only job to record. Raises :class:`dstack.errors.ClusterError` if the cluster is
    unreachable, and :class:`dstack.errors.UsageError` if there is no such job.
    """

    def __init__(
        self,
        address: str | None,
        duration_s: float,
        rate_hz: float,
        options: RecordingOptions,
        job: str | None,
        progress: Callable[[str], None],
    ) -> None:
        terms: wire.RecordOptions = {
            "rate_hz": rate_hz,
            "seconds": max(ROUND_S, 2 / rate_hz),
            "idle": options.idle,
            "gil": options.gil,
            "native": options.native,
            "is_last": False,
        }
        self._recorder = ClusterRecorder(
            address, terms, duration_s, lambda snapshot: find_job(snapshot, job) if job else None, progress
        )
        cluster = self._recorder.snapshot()
        self.first = Recording(
            dstack_version=cluster.dstack_version,
            address=cluster.address,
            ray_version=cluster.ray_version,
            began_at=self._recorder.began_at,
            rate_hz=rate_hz,
            options=replace(options, job_id=self._recorder.job_id),
        )

    def __enter__(self) -> RecordingSession:
        self._recorder.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._recorder.__exit__(*exc)

    def stop(self) -> None:
        """End it after the current round; another thread may call this."""
        self._recorder.stop()

    def parts(self) -> Iterator[RecordingPart]:
        """The rounds of all nodes as they end."""
        for found in self._recorder.rounds():
            if isinstance(found.result, NodeFailure):
                failures = tuple(node_failure(node, found.result, 1) for node in found.nodes)
                yield RecordingPart(recording=replace(self.first, failures=failures))
            elif found.result is not None:
                yield self._part(found, found.result)

    def _part(self, found: NodeRound, result: RecordedRound) -> RecordingPart:
        attribution = Attribution(self._recorder.snapshot())
        try:
            recording = converted(self.first, result, attribution)
        except LookupError:
            failures = tuple(node_failure(node, MALFORMED, 1) for node in found.nodes)
            return RecordingPart(recording=replace(self.first, failures=failures))
        return RecordingPart(recording=recording, worker_ids=tuple(result.ranks))


class Attribution:
    """What each worker of a cluster ran, for the threads of a recording."""

    def __init__(self, cluster: Snapshot) -> None:
        self._index = SampleIndex(cluster, Sample(began_s=0.0, ended_s=0.0))
        self._nodes = names.nodes(cluster.nodes)

    def thread(self, sampled: SampledThread, stack: Sequence[Frame], rank: int | None) -> RecordedThread | None:
        """The thread while it has this stack, leaf first; None if its worker is unknown, as one of dstack's own."""
        worker = self._index.workers.get(sampled.worker_id)
        if worker is None:
            return None
        actor = self._index.actors.get(worker.actor_id or "")
        return RecordedThread(
            worker_id=worker.worker_id,
            node_id=worker.node_id,
            pid=worker.pid,
            node=self._nodes.get(worker.node_id, f"node {names.short(worker.node_id)}"),
            kind=self._kind(worker, stack),
            name=actor.name if actor else "",
            job_id=worker.job_id,
            rank=rank,
            os_thread_id=sampled.os_thread_id,
            thread_name=sampled.thread_name,
        )

    def _kind(self, worker: Worker, stack: Sequence[Frame]) -> str:
        """``actor Trainer``, ``driver train.py``, ``task load`` by the function in the stack, or ``worker``."""
        if not worker.is_driver and worker.actor_id is None and (function := task_function(stack)):
            return f"task {function}"
        return kind_of(self._index, worker, None)

    def failure(self, failure: Failure) -> Failure | None:
        """A failed process; None if it has ended, as workers do, or is not of the application."""
        worker = self._index.workers.get(failure.worker_id or "")
        if worker is None or failure.cause == "ended":
            return None
        return dataclasses.replace(failure, node_id=worker.node_id)


def task_function(stack: Sequence[Frame]) -> str:
    """The function of the task that a stack, leaf first, executes; empty if it is not in one.

    Ray calls it from ``Worker.main_loop``; seen on Ray 2.46 and 2.60.
    """
    frames = reversed(stack)
    for frame in frames:
        if frame.file.endswith(ENTRIES) and frame.function.endswith("main_loop"):
            return next((one.function.rpartition(".")[2] for one in frames if _may_be_task(one)), "")
    return ""


def _may_be_task(frame: Frame) -> bool:
    """Whether a frame is of Python, and not of Ray's calls around a task."""
    is_python = frame.file.endswith((".py", ">"))
    return is_python and not any(folder in frame.file for folder in WRAPPERS)


def converted(first: Recording, result: RecordedRound, attribution: Attribution) -> Recording:
    """A round as a recording. Raises ``LookupError`` if it is malformed."""
    stacks = [[result.frames[index] for index in stack] for stack in result.stacks]
    threads: dict[RecordedThread, int] = {}
    counts: list[Count] = []
    for count in result.counts:
        sampled = result.threads[count.thread]
        found = attribution.thread(sampled, stacks[count.stack], result.ranks.get(sampled.worker_id))
        if found is not None:
            counts.append(count._replace(thread=threads.setdefault(found, len(threads))))
    return replace(
        first,
        duration_s=result.seconds,
        frames=result.frames,
        stacks=result.stacks,
        threads=tuple(threads),
        counts=tuple(counts),
        coverage=result.coverage,
        failures=tuple(failure for one in result.failures if (failure := attribution.failure(one))),
    )


def main(
    parent: Parent, address: str | None, duration_s: float, rate_hz: float, options: RecordingOptions, job: str | None
) -> None:
    """Makes one recording, as :func:`serve` does."""
    serve(parent, lambda note: RecordingSession(address, duration_s, rate_hz, options, job, note))
