"""Polling loops: threads and coroutines that several readings show at the same place, for the same dependencies.

A timed wait ends by itself, so formally its thread can proceed. In a loop that only waits again, it cannot. That is
observed: in all samples and quick readings, which span more than the timeout, the thread is in the same loop and polls
for the same dependencies, and its process neither ends nor submits a task. And the source proves that nothing else can
end the loop: that of the loop and of all functions between it and the poll (``Frame.only_polls``). Loops of Ray's
libraries do more; those that are known to poll without end are listed in their rooms, with the version. Conclusions
still rest on the assumption that the loop only polls.

Some loops poll by calls that succeed: the same method of the same actor, repeatedly (``repeated_calls``). Such a loop
depends on what can change the actor's state. Controllers of Ray's libraries sleep, and check without a wait whether
their own tasks have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from dstack.analysis.evidence.progress import JobProgress, RoutineCalls
from dstack.analysis.index.process_index import (
    CallRate,
    ExecutionKey,
    OwnTasks,
    Poll,
    PolledActors,
    Polls,
    execution_key,
)
from dstack.call_sites import kind_of
from dstack.libraries import data, serve, train
from dstack.model.snapshot import (
    ACTOR_HANDLE,
    RepeatedCall,
    Sample,
    Snapshot,
    Worker,
    actor_of_task,
    is_of_driver,
    producer_task_id,
)
from dstack.observed.call_site import NEW_RAY, Place, caller
from dstack.observed.calls import Awaitables, Call, Executions, HeldRefs, ProcessObject, Refs, Unreadable
from dstack.observed.processes import Coroutine, Frame, Process, Thread
from dstack.words import grouped

MIN_READINGS = 4
"""Fewer observations of a loop prove nothing."""
ENDLESS: tuple[Place, ...] = (
    caller("/ray/util/multiprocessing/pool.py", "run", NEW_RAY),
    caller("/ray/experimental/rdt/rdt_manager.py", "_monitor_failures", NEW_RAY),
    *data.ENDLESS,
    *serve.ENDLESS,
    *train.ENDLESS,
)
"""Functions of Ray's libraries that poll until what they poll for has come, and do work only then."""

WRAPPERS = ("ray/_private/client_mode_hook.py", "ray/_private/auto_init_hook.py")


@dataclass(frozen=True, slots=True)
class _Observation:
    """A thread or coroutine in one sample or reading, with the time of the reading."""

    began_s: float
    ended_s: float
    one: Thread | Coroutine


def find_polling_loops(snapshot: Snapshot, progress: JobProgress) -> Polls:
    """The loops that only poll, by the vertex of their thread or coroutine; none without readings."""
    samples = sorted((*snapshot.samples[:2], *snapshot.readings), key=lambda sample: sample.began_s)
    if len(samples) < MIN_READINGS or len(snapshot.samples) < 2:
        return {}
    return dict(_Finder(snapshot, samples, progress).polls())


def is_retried(frames: Iterable[Frame]) -> bool:
    """Whether a library is known to retry a call after its timeout, by the frames of who is in the call."""
    return any(frame.file.endswith(train.RETRYING) for frame in frames)


def moved_workers(samples: Sequence[Sample], routine: RoutineCalls) -> set[str]:
    """The workers that executed or submitted a task, or whose task ended; routine calls do not count."""
    shown: dict[str, set[object]] = defaultdict(set)
    counts: dict[str, set[object]] = defaultdict(set)
    for sample in samples:
        for worker_id, tasks in _unfinished(sample, routine).items():
            shown[worker_id].add(tasks)
        for worker in sample.workers:
            if worker.executed_tasks is not None and not routine.are_all(worker):
                counts[worker.worker_id].add(worker.executed_tasks)
    return {worker_id for seen in (shown, counts) for worker_id, values in seen.items() if len(values) > 1}


def _unfinished(sample: Sample, routine: RoutineCalls) -> dict[str, frozenset[tuple[str, str]]]:
    """The unfinished tasks, with their states, of each worker that answered; without routine calls."""
    found: dict[str, set[tuple[str, str]]] = {
        worker.worker_id: set() for worker in sample.workers if worker.running_task_ids is not None
    }
    for task in sample.tasks:
        if task.owner_id in found and not routine.is_one(task):
            found[task.owner_id].add((task.task_id, task.state))
    return {owner: frozenset(tasks) for owner, tasks in found.items()}


class _Finder:
    def __init__(self, snapshot: Snapshot, samples: Sequence[Sample], progress: JobProgress) -> None:
        self._snapshot = snapshot
        self._samples = samples
        self._progress = progress
        self._workers = {worker.worker_id: worker for worker in snapshot.workers}
        self._repeated: dict[str, list[RepeatedCall]] = defaultdict(list)
        for call in snapshot.repeated_calls:
            self._repeated[call.parent_task_id].append(call)

    def polls(self) -> Iterator[tuple[ExecutionKey, Poll]]:
        """All polling loops, in processes and jobs without progress."""
        moved = moved_workers(self._samples, self._progress.routine)
        jobs = {worker.job_id for worker in self._workers.values() if worker.job_id}
        busy_jobs = {job for job in jobs if (found := self._progress.of((job,))) and found.has_moved}
        for worker_id in {worker.worker_id for reading in self._snapshot.readings for worker in reading.workers}:
            worker = self._workers.get(worker_id)
            if worker is None or worker_id in moved:
                continue
            if worker.job_id not in busy_jobs if worker.job_id else not busy_jobs:
                yield from self._in_worker(worker)

    def _in_worker(self, worker: Worker) -> Iterator[tuple[ExecutionKey, Poll]]:
        processes = [
            (sample, one.process)
            for sample in self._samples
            for one in sample.workers
            if one.worker_id == worker.worker_id and one.process is not None and one.process.threads
        ]
        if len(processes) < MIN_READINGS or len({process.started_at for _, process in processes}) > 1:
            return
        series = _series(processes)
        threads = {one.one.task_id for several in series.values() for one in several}
        for identity, several in series.items():
            may_run = isinstance(identity, str)  # a coroutine is not listed while its event loop runs it
            is_there = len(several) * 3 >= len(processes) * 2 if may_run else len(several) == len(processes)
            if is_there and len(several) >= MIN_READINGS and _is_one(several):
                poll = self._timed(several) or self._heartbeat(worker, identity, several, threads)
                poll = poll or self._controller(several)
                if poll is not None:
                    yield execution_key(worker.worker_id, several[0].one), poll

    def _timed(self, several: Sequence[_Observation]) -> Poll | None:
        """A loop around a timed wait for the same dependencies, in at least every second reading."""
        inside = [one for one in several if one.one.call is not None and one.one.call.timeout_s is not None]
        if len(inside) * 2 < len(several) or any(one.one.call for one in several if one not in inside):
            return None
        calls = [one.one.call for one in inside if one.one.call is not None]
        if any(isinstance(call.need, (Unreadable, HeldRefs)) for call in calls) or len(set(map(_identity, calls))) > 1:
            return None
        longest_s = max(call.timeout_s or 0.0 for call in calls)
        is_short = inside[-1].began_s - inside[0].ended_s <= longest_s
        is_one = is_short and not is_retried(self._snapshot.frames_of(inside[-1].one))
        if is_one or _runs_out(calls):
            return None  # it may be one call that has not timed out yet, or have a deadline of its own
        if self._does_more(several, inside):
            return None
        return self._poll(several, inside, calls[-1])

    def _is_own_frame(self, shown: Thread | Coroutine) -> bool:
        """Whether a call's frame is that of the loop: one that calls into C, or a function of Ray's that sleeps."""
        frames = self._snapshot.frames_of(shown)
        at = shown.call.frame if shown.call else 0
        is_rays = bool(frames) and frames[0].origin == "ray"
        is_of_rays = shown.call is not None and kind_of(shown.call) == "other" and at == 0 and is_rays
        return is_of_rays or (at < len(frames) and frames[at].origin == "user")

    def _does_more(self, several: Sequence[_Observation], inside: Sequence[_Observation]) -> bool:
        """Whether a reading shows the loop in user code other than its polls."""
        polling = {_place(frame) for one in inside for frame in self._snapshot.frames_of(one.one)}
        others = (frame for one in several if one not in inside for frame in self._snapshot.frames_of(one.one))
        return any(frame.origin == "user" and _place(frame) not in polling for frame in others)

    def _heartbeat(
        self, worker: Worker, identity: int | str, several: Sequence[_Observation], tasks: Iterable[str | None]
    ) -> Poll | None:
        """A loop around calls that succeed: each reading shows such a call, or none."""
        task_id = several[0].one.task_id
        repeated = self._repeated.get(task_id or "", [])
        if not repeated and worker.actor_id and self._runs_alone(worker, task_id):
            repeated = self._repeated.get(ACTOR_HANDLE + worker.actor_id, [])
        if not repeated and worker.is_driver and identity == worker.pid:
            parents = (p for p, calls in self._repeated.items() if calls[0].job_id == worker.job_id)
            repeated = [c for p in parents if is_of_driver(p) and p not in tasks for c in self._repeated[p]]
        actors = {call.actor_id for call in repeated}
        refs = (ref for one in several if one.one.call for ref in one.one.call.refs)
        if not repeated or any(actor_of_task(producer_task_id(ref)) not in actors for ref in refs):
            return None
        if any(one.one.call and not one.one.call.refs and one.one.call.timeout_s is None for one in several):
            return None
        if _is_one_wait(several) or not all(self._is_between_polls(one.one) for one in several):
            return None
        return self._poll(several, several, PolledActors(tuple(sorted(actors)), tuple(self._rates(repeated))))

    def _is_between_polls(self, one: Thread | Coroutine) -> bool:
        """Whether it is in a call, asleep, or in Ray's code that makes the calls."""
        frames = self._snapshot.frames_of(one)  # none of a thread that is ending
        is_asleep = one.sleeps if isinstance(one, Thread) else bool(frames) and _is_sleep(frames[0])
        return one.call is not None or is_asleep or (bool(frames) and frames[0].origin == "ray")

    def _rates(self, repeated: Sequence[RepeatedCall]) -> Iterator[CallRate]:
        """The rate of each method, summed over actors."""
        by_name = grouped((call.name, call) for call in repeated)
        for name, calls in sorted(by_name.items()):
            per_second = sum((call.calls - 1) / call.over_s for call in calls if call.over_s > 0)
            began = [call.first_at for call in calls if call.first_at is not None]
            for_s = self._snapshot.taken_at - min(began) if began and self._snapshot.has_one_time else 0.0
            yield CallRate(name, per_second, for_s if for_s > 0 else None)

    def _runs_alone(self, worker: Worker, task_id: str | None) -> bool:
        """Whether an actor runs this task alone.

        For calls from coroutines, Ray names the actor's creation as the caller (seen on Ray 2.60).
        """
        running = (
            one.running_task_ids
            for sample in self._samples
            for one in sample.workers
            if one.worker_id == worker.worker_id
        )
        return task_id is not None and set(running) == {(task_id,)}

    def _controller(self, several: Sequence[_Observation]) -> Poll | None:
        """A task with code of Ray's libraries alone, which sleeps at the same place in each reading."""
        shown = several[-1].one
        frames = self._snapshot.frames_of(shown)
        is_rays = any(frame.origin == "ray" for frame in frames) and {f.origin for f in frames} <= {"ray", "stdlib"}
        if shown.task_id is None or not is_rays or len({one.one.stack for one in several}) > 1:
            return None
        is_asleep = _is_sleep(frames[0]) or all(isinstance(one.one, Thread) and one.one.sleeps for one in several)
        if not is_asleep or any(one.one.call or not one.one.still for one in several):
            return None
        return self._poll(several, several, OwnTasks())

    def _poll(
        self, several: Sequence[_Observation], polling: Sequence[_Observation], target: Call | PolledActors | OwnTasks
    ) -> Poll | None:
        """The poll, if each of the observations that show it has the loop in a function that all of them share."""
        stacks = [self._snapshot.stacks[one.one.stack] for one in several]
        shared = _depth_of_loop(stacks, self._snapshot.frames)
        loops = [self._loop(one.one) for one in polling]
        if any(loop is None or loop[0] > shared for loop in loops):
            return None
        _, at = loops[-1] or (0, None)
        return Poll(target, polling[-1].one.stack, at) if at is not None else None

    def _loop(self, one: Thread | Coroutine) -> tuple[int, Frame] | None:
        """The loop that only polls around what a thread does, with the depth of its frame in the stack."""
        frames = self._snapshot.frames_of(one)
        begin = one.call.frame + (not self._is_own_frame(one)) if one.call else 0
        around = list(enumerate(frames[begin:], begin))
        library = list(takewhile(lambda numbered: numbered[1].origin != "user", around))
        for number, frame in library:
            if _is_endless(frame):
                return len(frames) - 1 - number, next(frame for _, frame in library if not _is_wrapper(frame))
        for number, frame in around if one.call else around[len(library) :]:
            if _is_wrapper(frame):
                continue
            if not frame.only_polls:
                return None
            if frame.body is not None:
                return len(frames) - 1 - number, frame
        return None


def _series(processes: Iterable[tuple[Sample, Process]]) -> dict[int | str, list[_Observation]]:
    """The observations of each thread and coroutine, without those of torn stacks."""
    series: dict[int | str, list[_Observation]] = defaultdict(list)
    for sample, process in processes:
        for thread in process.threads:
            if not thread.torn:
                series[thread.os_thread_id].append(_Observation(sample.began_s, sample.ended_s, thread))
        for coroutine in process.coroutines:
            series[coroutine.coroutine_id].append(_Observation(sample.began_s, sample.ended_s, coroutine))
    return series


def _is_one(several: Sequence[_Observation]) -> bool:
    """Whether they are of one thread or coroutine in one task: addresses of coroutines are reused."""
    return len({(one.one.name, one.one.task_id) for one in several}) == 1


def _is_one_wait(several: Sequence[_Observation]) -> bool:
    """Whether all show one wait without a timeout, so that it is no poll."""
    calls = [one.one.call for one in several if one.one.call and one.one.call.timeout_s is None]
    return len(calls) == len(several) and len(set(map(_identity, calls))) == 1


def _is_sleep(leaf: Frame) -> bool:
    return leaf.function == "sleep" and leaf.file.endswith("/asyncio/tasks.py")


def _runs_out(calls: Sequence[Call]) -> bool:
    """Whether the timeouts become shorter, as in a loop with a deadline of its own."""
    timeouts = [call.timeout_s or 0.0 for call in calls]
    return timeouts[-1] < timeouts[0] and timeouts == sorted(timeouts, reverse=True)


def _is_wrapper(frame: Frame) -> bool:
    """Whether a frame only calls the next one: a wrapper of Ray, or a function of Python without a loop around that."""
    return frame.file.endswith(WRAPPERS) or (frame.origin == "stdlib" and frame.body is None)


def _is_endless(frame: Frame) -> bool:
    """Whether a function of a library is known to poll until what it polls for has come."""
    name = frame.function.rpartition(".")[2]
    return any(name == place.function and frame.file.endswith(place.file) for place in ENDLESS)


def _place(frame: Frame) -> tuple[str, str]:
    return frame.function, frame.file


def _identity(call: Call) -> tuple[object, ...]:
    """The dependencies of a call."""
    object_id = call.need.object_id if isinstance(call.need, (ProcessObject, Executions)) else None
    count = call.need.count if isinstance(call.need, (Refs, Awaitables)) else None
    return (*_named(call), frozenset(call.refs), count, object_id, call.threads, call.coroutines)


def _named(call: Call) -> tuple[object, ...]:
    return call.site, call.within, call.name


def _depth_of_loop(stacks: Sequence[tuple[int, ...]], frames: Sequence[Frame]) -> int:
    """The depth of the innermost frame that all stacks share, whatever its line; -1 for none."""
    rows = [stack[::-1] for stack in stacks]
    depth = 0
    while all(len(row) > depth for row in rows) and len({row[depth] for row in rows}) == 1:
        depth += 1
    places = {_place(frames[row[depth]]) for row in rows if len(row) > depth}
    is_same = len(places) == 1 and all(len(row) > depth for row in rows)
    return depth if is_same else depth - 1
