"""Who holds which bytes of the object store: makers, processes that keep values, and why each value is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from dstack import words
from dstack.analysis.index import subjects
from dstack.analysis.index.refs import ENDED
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.model.snapshot import Node, ObjectSum, ObjectUse, StoredObject, StoredObjects
from dstack.observed.node import RayletReport
from dstack.words import grouped

STORE = "object_store_memory"
NO_STORED = StoredObjects(total=0, size_bytes=0)


@dataclass(frozen=True, slots=True)
class Share:
    """A part of the values: who made or keeps them. ``mapped_bytes`` are in use by processes that keep them."""

    name: str
    objects: int
    size_bytes: int
    mapped_bytes: int = 0
    processes: int = 1

    @property
    def words(self) -> str:
        """``make: 40 MiB in 2 objects``; of several processes with their number."""
        used = f", {words.size(self.mapped_bytes)} of it in use" if self.mapped_bytes else ""
        name = words.times_of(self.name, self.processes)
        return f"{name}: {words.size(self.size_bytes)} in {words.plural(self.objects, 'object')}{used}"


@dataclass(frozen=True, slots=True)
class StoreOfNode:
    """The object store of a node: its size, what of it is used if known, and what its raylet last wrote."""

    node: Node
    total_bytes: int
    used_bytes: int | None
    report: RayletReport | None

    @property
    def words(self) -> str:
        """``80 of 200 MiB used; its raylet, 4 s before: 80 MiB spilled``."""
        used = "use unknown" if self.used_bytes is None else f"{words.size(self.used_bytes)} used"
        return "; ".join((f"{used} of {words.size(self.total_bytes)}", *self._reported()))

    def _reported(self) -> Iterator[str]:
        if self.report is None:
            return
        counts = self.report.counts
        if held := self.report.argument_bytes:
            yield f"{words.size(held)} pinned as arguments of tasks"
        if waiting := self.report.waiting_for_memory:
            yield f"{words.plural(waiting, 'request')} for a worker waiting for room for arguments"
        if spilled := counts.get("spilled bytes"):
            yield f"{words.size(spilled)} spilled to disk"
        if spilling := counts.get("pending spills"):
            size = words.size(counts.get("bytes to spill", 0))
            yield f"{words.plural(spilling, 'object')} being spilled ({size})"
        if restoring := counts.get("pending restores"):
            yield f"{words.plural(restoring, 'object')} being restored from disk"
        if pulled := counts.get("pulled bytes"):
            yield f"{words.size(pulled)} being pulled"
        if queued := counts.get("queued pulls"):
            yield f"{words.plural(queued, 'object')} waiting to be pulled"


class ObjectMemory:
    """What the last sample of a snapshot shows of the object store."""

    def __init__(self, index: SampleIndex) -> None:
        self._index = index
        self.stored = index.snapshot.stored or NO_STORED

    @cached_property
    def nodes(self) -> tuple[StoreOfNode, ...]:
        """The object stores of the live nodes."""
        reports = {report.node_id: report for report in self._index.snapshot.raylet_reports}
        return tuple(self._store(node, reports.get(node.node_id)) for node in self._index.snapshot.nodes if node.alive)

    def _store(self, node: Node, report: RayletReport | None) -> StoreOfNode:
        total = (self._index.sample.total.get(node.node_id) or node.resources).get(STORE, 0.0)
        free = self._index.sample.available.get(node.node_id)
        used = None if free is None else max(0, int(total - free.get(STORE, 0.0)))
        return StoreOfNode(node, int(total), used, report)

    @cached_property
    def makers(self) -> tuple[Share, ...]:
        """Sums by the function that has returned or put the values, else by their owner, largest first."""
        return _merged(Share(self._made_by(one), one.objects, one.size_bytes) for one in self.stored.by_maker)

    @cached_property
    def keepers(self) -> tuple[Share, ...]:
        """Sums by what keeps the values: actors of one class together, largest first; a value may be in several."""
        return _merged(
            Share(self._kind(one.worker_id), one.objects, one.size_bytes, one.mapped_bytes)
            for one in self.stored.by_process
        )

    def made_by(self, value: StoredObject) -> str:
        """``make``, ``ray.put in Holder.keep``, ``ray.put in driver train.py``."""
        return self._made_by(value)

    def owner(self, value: StoredObject) -> str:
        """The process that owns a value."""
        return self._process(value.owner_id) if value.owner_id else "a process that was not read"

    def why_kept(self, value: StoredObject) -> Iterator[str]:
        """A part of a sentence for each thing that keeps a value."""
        for use in value.uses:
            yield from self._uses(use)
        if value.inside:
            yield f"inside of {words.listed([f'object {ref}' for ref in value.inside])}"

    def place(self, value: StoredObject) -> str:
        """Where a value is, by its owner."""
        place = value.place
        if place is None:
            return "place unknown"
        parts = []
        if place.node_ids:
            parts.append(f"in memory on {words.shortly([self._node(one) for one in place.node_ids])}")
        if place.is_spilled:
            parts.append(f"on disk of {self._node(place.spilled_on)}" if place.spilled_on else "in external storage")
        return " and ".join(parts)

    def _made_by(self, value: StoredObject | ObjectSum) -> str:
        by = value.maker or (self._kind(value.owner_id) if value.owner_id else "a process that was not read")
        if value.is_put:
            return f"ray.put in {by}"
        return value.maker or f"a task of {by}"

    def _uses(self, use: ObjectUse) -> Iterator[str]:
        process = self._process(use.worker_id)
        site = f", got at {use.call_site}" if use.call_site else ""
        if use.local:
            yield f"{words.plural(use.local, 'reference')} in {process}{site}"
        if use.argument:
            yield f"argument of {self._tasks(use)} that {process} has submitted"
        if use.is_mapped:
            yield f"value in use by {process}{'' if use.local else site}"

    def _tasks(self, use: ObjectUse) -> str:
        """The unfinished tasks that take a value: Ray only counts them, so the only one of a process is known."""
        owned = self._unfinished.get(use.worker_id, [])
        return owned[0] if len(owned) == 1 else words.plural(use.argument, "unfinished task")

    @cached_property
    def _unfinished(self) -> dict[str, list[str]]:
        tasks = (task for task in self._index.tasks.values() if task.state not in ENDED)
        return grouped((task.owner_id, names.task(subjects.task(self._index, task.task_id))) for task in tasks)

    def _process(self, worker_id: str) -> str:
        known = self._index.workers.get(worker_id)
        task = self._running(worker_id)
        if task and known:
            return f"{task} (pid {known.pid})"
        return names.process(subjects.process(self._index, worker_id, with_pid=True))

    def _kind(self, worker_id: str) -> str:
        """What processes of a kind are called: by their actors' class, the driver's script, or the task they run."""
        actor = self._index.actor_of_worker(worker_id)
        if actor:
            return names.actor_kind(actor).name
        return self._running(worker_id) or names.process(subjects.process(self._index, worker_id))

    def _running(self, worker_id: str) -> str:
        """The task that a worker runs; empty for an actor or a driver."""
        sample = self._index.worker_samples.get(worker_id)
        tasks = (sample.running_task_ids if sample else None) or ()
        is_actor = self._index.actor_of_worker(worker_id) is not None
        return "" if is_actor or len(tasks) != 1 else names.task(subjects.task(self._index, tasks[0]))

    def _node(self, node_id: str) -> str:
        node = self._index.nodes.get(node_id)
        return names.node(node) if node else f"node {names.short(node_id)}"


def _merged(shares: Iterable[Share]) -> tuple[Share, ...]:
    """One share for each name, largest first."""
    found = [
        replace(
            some[0],
            objects=sum(one.objects for one in some),
            size_bytes=sum(one.size_bytes for one in some),
            mapped_bytes=sum(one.mapped_bytes for one in some),
            processes=len(some),
        )
        for some in grouped((one.name, one) for one in shares).values()
    ]
    return tuple(sorted(found, key=lambda one: -one.size_bytes))
