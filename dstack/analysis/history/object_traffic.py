"""Which objects processes get from each other, and how many calls they execute, counted from one sample to the next.

Ray keeps no record of either, so both are lower bounds: what comes and goes between two samples is missed. An object
that is counted is exact: its value was in the process that got it, or the process had waited for it, and its size is
what Ray says. Seen on Ray 2.60.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from dstack.analysis.naming import names
from dstack.call_sites import kind_of
from dstack.model.profile import MAX_EDGES, Endpoint, ExecutedCalls, Traffic
from dstack.model.snapshot import ACTOR_HANDLE, Actor, Snapshot, Worker, WorkerSample, actor_of_task, job_of_task
from dstack.observed.node import IN_STORE, CoreWorkerReply
from dstack.observed.processes import Process

FORGOTTEN_FROM = 100_000
"""With more known ids, those of objects that no process knows any more are forgotten."""
MAX_REFS = 2_000
"""Of a process with more refs, only the values are counted that it uses in shared memory: to look at all takes long."""
MAX_KNOWN = 1_000_000
"""With more ids, no further objects are counted."""


class ObjectTraffic:
    """Counts the objects and calls of a cluster, or of the job with this id; those of the first sample are not new."""

    def __init__(self, job_id: str | None = None) -> None:
        self._job_id = job_id
        self._has_begun = False
        self._names: dict[str, str] = {}
        """Those of tasks, by their ids without the first byte, which is another one in the ids of what they put."""
        self._listed: Sequence[Actor] = ()
        self._classes: Mapping[str, str] = {}
        self._scripts: Mapping[str, str] = {}
        self._processes: dict[str, Process] = {}
        self._replies: dict[str, CoreWorkerReply] = {}
        self._awaited: dict[str, dict[str, Endpoint]] = {}
        self._counted: dict[str, set[str]] = {}
        self._forget_from = FORGOTTEN_FROM
        self._executed: dict[str, int] = {}
        self._objects: Counter[tuple[Endpoint, Endpoint]] = Counter()
        self._bytes: Counter[tuple[Endpoint, Endpoint]] = Counter()
        self._calls: Counter[Endpoint] = Counter()

    def note(self, snapshot: Snapshot, changed: Iterable[CoreWorkerReply]) -> None:
        """Count what the sample of a snapshot shows; ``changed`` are the replies that are not those of the last one."""
        if snapshot.actors is not self._listed:
            self._listed, self._classes = snapshot.actors, {one.actor_id: one.class_name for one in snapshot.actors}
        self._scripts = {one.job_id: names.script(one.entrypoint) for one in snapshot.jobs}
        workers = {one.worker_id: one for one in snapshot.workers if self._job_id in (None, one.job_id)}
        replies = [reply for reply in changed if reply.worker_id in workers]
        for reply in replies:
            self._names.update((task.task_id[2:], task.name) for task in reply.tasks)
        for sample in snapshot.samples[0].workers:
            if worker := workers.get(sample.worker_id):
                self._note_worker(worker, sample)
        for reply in replies:
            self._note_values(workers[reply.worker_id], reply)
            self._replies[reply.worker_id] = reply
        self._forget(workers)
        self._has_begun = True

    def taken(self) -> tuple[list[Traffic], list[ExecutedCalls]]:
        """What was counted since the last time."""
        traffic = [Traffic(*edge, objects, self._bytes[edge]) for edge, objects in self._objects.items()]
        calls = [ExecutedCalls(by, count) for by, count in self._calls.items()]
        for counter in (self._objects, self._bytes, self._calls):
            counter.clear()
        return traffic, calls

    # What a process does

    def _note_worker(self, worker: Worker, sample: WorkerSample) -> None:
        """Note the calls that a worker has executed, and the refs that it waits for."""
        worker_id, executed = worker.worker_id, sample.executed_tasks
        if executed is not None:
            new = executed - self._executed.get(worker_id, executed)
            self._executed[worker_id] = executed
            if new > 0:
                self._calls[self._class_of(worker)] += new
        process = sample.process
        if process is not None and process is not self._processes.get(worker_id):
            self._processes[worker_id] = process
            if (refs := list(_awaited(process))) and (asker := self._asker(worker, sample.running_task_ids or ())):
                self._awaited.setdefault(worker_id, {}).update(dict.fromkeys(refs, asker))

    def _note_values(self, worker: Worker, reply: CoreWorkerReply) -> None:
        """Count the objects whose values have come to a worker."""
        counted = self._counted.setdefault(worker.worker_id, set())
        awaited = self._awaited.get(worker.worker_id, {})
        asker = self._asker(worker, reply.running_task_ids if self._is_only_call(worker, reply) else ())
        own = {task_id[2:] for task_id in reply.running_task_ids}
        room = max(0, MAX_KNOWN - self._known)
        for ref_id, size in islice(_values(reply, counted, awaited), room):
            by = awaited.get(ref_id, asker)
            if by is None:
                continue
            counted.add(ref_id)
            if self._has_begun and not _is_own(ref_id, worker, own) and (maker := self._maker(ref_id)):
                self._add((maker, by), size)

    def _is_only_call(self, worker: Worker, reply: CoreWorkerReply) -> bool:
        """Whether what a worker has got since its last reply is of the call that it runs.

        An actor may keep values, also those of other calls. Ray counts a call when it begins (seen on Ray 2.60).
        """
        last = self._replies.get(reply.worker_id)
        return not worker.actor_id or reply.executed_tasks - (last.executed_tasks if last else 0) <= 1

    def _add(self, edge: tuple[Endpoint, Endpoint], size: int) -> None:
        if edge in self._objects or len(self._objects) < MAX_EDGES:
            self._objects[edge] += 1
            self._bytes[edge] += size

    # Who it is

    def _class_of(self, worker: Worker) -> Endpoint:
        return self._method(worker.actor_id) if worker.actor_id else Endpoint("function", job_id=worker.job_id or "")

    def _asker(self, worker: Worker, running: Collection[str]) -> Endpoint | None:
        """What a worker runs; None for a worker of functions that runs none, or one without a known name."""
        job_id = worker.job_id or ""
        if worker.is_driver:
            return Endpoint("driver", self._scripts.get(job_id, ""), job_id=job_id)
        name = self._names.get(next(iter(running))[2:], "") if len(running) == 1 else ""
        if worker.actor_id:
            return self._method(worker.actor_id, name)
        return Endpoint("function", name, job_id=job_id) if name else None

    def _maker(self, ref_id: str) -> Endpoint | None:
        """What has made an object; None if it was put by a task without a known name, as by another thread."""
        rest, job_id, actor_id = ref_id[2:48], job_of_task(ref_id), actor_of_task(ref_id)
        if not rest[:38].strip("f"):
            return Endpoint("driver", self._scripts.get(job_id, ""), job_id=job_id)
        name = self._names.get(rest, "")
        if actor_id is not None:
            return self._method(actor_id, name)
        return Endpoint("function", name, job_id=job_id) if name or _is_result(ref_id) else None

    def _method(self, actor_id: str, name: str = "") -> Endpoint:
        class_name, _, method = name.rpartition(".")
        return Endpoint("actor", self._classes.get(actor_id) or class_name, method, actor_id[-8:])

    # What is forgotten

    @property
    def _known(self) -> int:
        return sum(map(len, self._counted.values()))

    def _forget(self, workers: Mapping[str, Worker]) -> None:
        """Forget workers that have left; and objects and tasks that have ended, if there are many."""
        for of_workers in (self._processes, self._replies, self._awaited, self._counted, self._executed):
            for worker_id in [one for one in of_workers if one not in workers]:
                del of_workers[worker_id]
        if self._known + len(self._names) < self._forget_from:
            return
        alive = {ref.ref for reply in self._replies.values() for ref in reply.refs}
        self._counted = {worker_id: ids & alive for worker_id, ids in self._counted.items()}
        self._awaited = {
            worker_id: {ref: by for ref, by in refs.items() if ref in alive}
            for worker_id, refs in self._awaited.items()
        }
        tasks = {task.task_id[2:] for reply in self._replies.values() for task in reply.tasks}
        tasks.update(ref_id[2:48] for ref_id in alive)
        self._names = {task_id: name for task_id, name in self._names.items() if task_id in tasks}
        self._forget_from = max(FORGOTTEN_FROM, 2 * (self._known + len(self._names)))


def _awaited(process: Process) -> Iterator[str]:
    """The refs whose values a process waits for; ``ray.wait`` gets no values."""
    return (ref for one in process.family for call in one.calls() if kind_of(call) != "ray.wait" for ref in call.refs)


def _values(reply: CoreWorkerReply, counted: Collection[str], awaited: Collection[str]) -> Iterator[tuple[str, int]]:
    """The objects whose values are in the process, except those that are counted: ids, and sizes in bytes.

    A small result comes to the memory of its owner, which alone knows its size.
    """
    for ref_id, size in reply.mapped.items():
        if ref_id not in counted:
            yield ref_id, size
    for ref in reply.refs if len(reply.refs) <= MAX_REFS else ():
        size = ref.size_bytes
        if size > 0 and ref.ref not in counted and ref.ref not in reply.mapped:
            is_small = size < IN_STORE and _is_result(ref.ref) and not ref.ref.startswith(ACTOR_HANDLE)
            if is_small or ref.ref in awaited:
                yield ref.ref, size


def _is_result(ref_id: str) -> bool:
    """Whether an object is the result of a task; what a task puts counts from 100,000,001."""
    return ref_id.endswith("0000")


def _is_own(ref_id: str, worker: Worker, running: Collection[str]) -> bool:
    """Whether a worker has made an object itself."""
    rest, actor_id = ref_id[2:48], actor_of_task(ref_id)
    if not rest[:38].strip("f"):
        return worker.is_driver and worker.job_id == job_of_task(ref_id)
    return rest in running if actor_id is None else actor_id == worker.actor_id
