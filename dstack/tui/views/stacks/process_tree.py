"""All stacks by node, process and thread, as lines of an outline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dstack.analysis.stacks.app_threads import Activity
from dstack.analysis.views.snapshot_changes import SnapshotChanges
from dstack.analysis.views.stack_pages import (
    ChildThreads,
    ProcessThreads,
    ThreadSummary,
    child_threads,
    worker_name,
)
from dstack.analysis.views.thread_pages import Stacks
from dstack.model import Node, Worker
from dstack.report.safe_text import SafeText
from dstack.tui.views.marks import marked
from dstack.tui.views.stacks.line_parts import WORDS, About, activities_in_words, activity_word, mark_of, ranks_part
from dstack.tui.widgets.outline_tree import Line
from dstack.vertex_keys import ChildThreadKey, Key
from dstack.words import plural

FEW_PROCESSES = 200
"""All nodes are unfolded at first if there are not more processes; else only the first node."""


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """The processes by node; with ``found`` only these processes, and only these stacks of a process with keys."""

    stacks: Stacks
    marked: set[str]
    found: Mapping[str, set[Key]] | None = None
    changes: SnapshotChanges | None = None

    def title(self) -> str:
        """``By process``, with the number of marked workers."""
        marked = f", {len(self.marked):,} marked" if self.marked else ""
        return f"By process{marked}{', filtered' if self.found is not None else ''}"

    def lines(self) -> list[Line]:
        """One line for each node, with its processes below, and their threads and coroutines below those."""
        nodes = [(node, workers) for node in self.stacks.nodes if (workers := self._found_on(node))]
        few = sum(len(workers) for _, workers in nodes) <= FEW_PROCESSES
        return [self._node(node, workers, is_open=few or not number) for number, (node, workers) in enumerate(nodes)]

    def _found_on(self, node: Node) -> list[Worker]:
        workers = self.stacks.workers_on(node)
        return [one for one in workers if self.found is None or one.worker_id in self.found]

    def _node(self, node: Node, workers: Sequence[Worker], *, is_open: bool) -> Line:
        ids = tuple(worker.worker_id for worker in workers)
        activities = [self.stacks.activities.get(worker_id, {}) for worker_id in ids]
        counts: dict[Activity, int] = {activity: sum(one.get(activity, 0) for one in activities) for activity in WORDS}
        text = SafeText(mark_of(ids, self.marked)).append(f"node {node.ip}", "bold")
        text.append(f"  {plural(len(workers), 'process', 'processes')}{', head' * node.is_head}", "dim")
        text.append(f"  {activities_in_words(counts)}" if any(counts.values()) else "")
        return Line(
            f"node/{node.node_id}",
            text,
            lambda: [self._process(worker) for worker in workers],
            is_open=is_open,
            data=About(workers=ids),
        )

    def _process(self, worker: Worker) -> Line:
        counts = self.stacks.activities.get(worker.worker_id, {})
        text = SafeText(mark_of((worker.worker_id,), self.marked))
        text.append(worker_name(self.stacks.index, worker), "bold" if counts else "")
        text.append(ranks_part(self.stacks.ranks_of(worker))).append(f"  pid {worker.pid}", "dim")
        text.append(f"  {activities_in_words(counts)}" if counts else "")
        if not counts:
            text.append(f"  {self.stacks.process_threads(worker).trouble}", "dim")
        return Line(
            f"worker/{worker.worker_id}",
            marked("new" if self.changes and worker.worker_id in self.changes.new_workers else None, text),
            lambda: self._strands(self.stacks.process_threads(worker)),
            is_open=bool(counts) or bool(child_threads(self.stacks.index, worker.worker_id)),
            data=About(workers=(worker.worker_id,)),
        )

    def _strands(self, process_threads: ProcessThreads) -> list[Line]:
        worker_id = process_threads.worker.worker_id
        keys = self.found.get(worker_id) if self.found else None
        threads = [strand for strand in process_threads.threads if not keys or strand.key in keys]
        lines = [_strand(strand, self.changes) for strand in threads]
        if process_threads.others and not keys:
            text = SafeText(f"{plural(len(process_threads.others), 'thread')} of Ray and its libraries", "dim italic")
            others = process_threads.others
            data = About(workers=(worker_id,))
            lines.append(Line(f"others/{worker_id}", text, lambda: [_strand(strand) for strand in others], data=data))
        return [*lines, *(self._child(process_threads.worker, child) for child in process_threads.children if not keys)]

    def _child(self, worker: Worker, child: ChildThreads) -> Line:
        text = SafeText().append(child.name, "bold").append(ranks_part(self.stacks.ranks_of(worker, child.process)))
        text.append(f"  pid {child.process.pid}", "dim")
        if not child.threads:
            text.append("  not read", "dim")
        key = _child_key(worker.worker_id, child.process.pid)
        data = About(workers=(worker.worker_id,))
        return Line(key, text, lambda: [_strand(strand) for strand in child.threads], is_open=True, data=data)


def _child_key(worker_id: str, pid: int) -> str:
    return f"child/{worker_id}/{pid}"


def stack_keys(stacks: Stacks, vertex: Key) -> list[str]:
    """The keys of the lines from the root down to a stack; empty if the tree does not contain it."""
    place = stacks.pages.path_to(vertex)
    if place is None:
        return []
    node_id, worker_id = place
    below = [_child_key(vertex.worker_id, vertex.pid)] if isinstance(vertex, ChildThreadKey) else []
    return [f"node/{node_id}", f"worker/{worker_id}", *below, str(vertex)]


def _strand(strand: ThreadSummary, changes: SnapshotChanges | None = None) -> Line:
    text = activity_word(strand.activity).append(strand.name)
    text.append(f"  {strand.words}", "dim")
    text.append("  stack may be inconsistent" if strand.is_torn else "", "yellow")
    mark = changes.executions.get(strand.key) if changes else None
    return Line(str(strand.key), marked(mark, text), data=About(vertex=strand.key, workers=(strand.worker_id,)))
