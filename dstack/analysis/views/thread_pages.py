"""The stacks of a cluster, node by node and process by process, and what each waits for, to go on from there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names, sentences
from dstack.analysis.naming.vertex_details import details_of, execution_of, is_torn
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.stacks.absent_workers import AbsenceReasons, AbsentWorker, absent_workers
from dstack.analysis.stacks.activity import Activity, activity_of
from dstack.analysis.stacks.app_threads import (
    AppExecutions,
    Execution,
    call_in_words,
    kind_of,
    running,
)
from dstack.analysis.stacks.outliers import Outlier, outliers
from dstack.analysis.stacks.rank_sets import RankSets
from dstack.analysis.stacks.stack_tree import Grouping, TextFilter, groupings
from dstack.analysis.views.distributed_stack import group_similar
from dstack.diagnosis import Vertex
from dstack.model import Coroutine, Frame, Node, Process, Thread, Worker
from dstack.vertex_keys import ChildThreadKey, CoroutineKey, Key, ThreadKey

MAX_DEPENDENCIES = 200
"""So many kinds of what is waited for are told of one wait."""


class ThreadSummary(NamedTuple):
    """A thread or coroutine, by the key its vertex has or would have; ``words`` say in brief what it is in.

    ``is_torn`` as :attr:`dstack.model.Thread.torn`.
    """

    key: Key
    name: str
    worker_id: str
    activity: Activity
    words: str
    is_torn: bool = False


class ChildThreads(NamedTuple):
    """A process that a worker or driver has started, with its threads, the main one first."""

    process: Process
    name: str
    strands: tuple[ThreadSummary, ...]


class ProcessThreads(NamedTuple):
    """A worker or driver: its threads and coroutines of the application, and those of Ray and its libraries.

    ``trouble`` says why there are none of the application. ``children`` are processes that it has started.
    """

    worker: Worker
    name: str
    strands: tuple[ThreadSummary, ...]
    others: tuple[ThreadSummary, ...]
    trouble: str
    children: tuple[ChildThreads, ...] = ()


class FrameRun(NamedTuple):
    """Frames that stand together in a stack, by their index from the leaf, outermost first.

    ``is_aside`` tells those of others' code, which one may fold.
    """

    frames: tuple[tuple[int, Frame], ...]
    is_foldable: bool


class DependencyLink(NamedTuple):
    """What a wait is for: a vertex to go to, or several alike ones, by the name of the first."""

    keys: tuple[Key, ...]
    name: str
    place: str


class StackPage(NamedTuple):
    """One execution, or something else in the graph, as a page: who, doing what, where, and where it goes on.

    ``call_at`` is the index from the leaf of the frame that is blocked, ``locals`` are by such an index, where taken.
    ``is_torn`` as :attr:`dstack.model.Thread.torn`.
    """

    key: Key
    name: str
    place: str
    sentence: str
    runs: tuple[FrameRun, ...]
    call_at: int | None
    call: str
    locals: Mapping[int, Mapping[str, str]]
    dependencies: tuple[DependencyLink, ...]
    left_out: int
    is_torn: bool = False


class Stacks:
    """All stacks of one sample; what costs time is worked out when it is asked for, and once."""

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex]) -> None:
        self.index = index
        self.vertices = vertices
        self._running: dict[bool, AppExecutions] = {}
        self._outliers: dict[bool, dict[Key, Outlier]] = {}

    # All together

    def running(self, *, whole: bool = False) -> AppExecutions:
        """The application's executions, with whole stacks or only its own frames."""
        if whole not in self._running:
            self._running[whole] = running(self.index, self.vertices, whole=whole)
        return self._running[whole]

    def outliers(self, *, whole: bool = False) -> dict[Key, Outlier]:
        """Who is elsewhere than most alike."""
        if whole not in self._outliers:
            self._outliers[whole] = outliers(self.running(whole=whole).executions, self.rank_sets)
        return self._outliers[whole]

    @cached_property
    def groupings(self) -> tuple[Grouping | None, ...]:
        """The ways in which they can be grouped."""
        return groupings(self.running().executions)

    @cached_property
    def rank_sets(self) -> RankSets:
        """Which workers belong together, to say what a part of them has in common."""
        return RankSets(self.index)

    def ranks_in_words(self, executions: Iterable[Execution]) -> str:
        """``ranks 4-7 (all of pp 1)``: the workers of some executions; empty where no rank tells them apart."""
        found = self.rank_sets.rank_set_of(executions)
        return found.words if found else ""

    @cached_property
    def absent_workers(self) -> tuple[AbsentWorker, ...]:
        """Of whom nothing is among the executions."""
        return absent_workers(self.index, self.vertices, self.running().executions)

    # Node by node

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that have workers, the head first."""
        there = (node for node in self.index.snapshot.nodes if node.node_id in self._workers_on)
        return tuple(sorted(there, key=lambda node: not node.is_head))

    def workers_on(self, node: Node) -> tuple[Worker, ...]:
        """The workers of a node: drivers first, then those that do something."""
        return tuple(
            sorted(
                self._workers_on[node.node_id],
                key=lambda worker: (
                    not worker.is_driver,
                    not self.activities.get(worker.worker_id),
                    *self._order(worker),
                ),
            )
        )

    def _order(self, worker: Worker) -> tuple[str, int, int]:
        """By process id; those with ranks by class and rank, behind the others."""
        rank = self.index.ranks(worker.worker_id).rank
        return ("", 0, worker.pid) if rank is None else (kind_of(self.index, worker, None), rank, worker.pid)

    @cached_property
    def activities(self) -> dict[str, dict[Activity, int]]:
        """By worker: how many of its executions wait, run and neither."""
        counts: dict[str, dict[Activity, int]] = {}
        for execution in self.running().executions:
            of_worker = counts.setdefault(execution.worker_id, {})
            of_worker[execution.activity] = of_worker.get(execution.activity, 0) + 1
        return counts

    def process_threads(self, worker: Worker) -> ProcessThreads:
        """A worker with all its threads and coroutines."""
        keys = self._executions.get(worker.worker_id, {})
        process = self.index.process(worker.worker_id)
        everybody: list[tuple[Key, Thread | Coroutine]] = []
        if process is not None:
            everybody += [(ThreadKey(worker.worker_id, one.os_thread_id), one) for one in process.threads]
            everybody += [(CoroutineKey(worker.worker_id, one.coroutine_id), one) for one in process.coroutines]
        strands = [self._strand(worker.worker_id, key, one) for key, one in everybody]
        return ProcessThreads(
            worker=worker,
            name=self.name_of(worker),
            strands=tuple(strand for strand in strands if strand.key in keys),
            others=tuple(strand for strand in strands if strand.key not in keys),
            trouble="" if keys else self._lull.why(worker)[1],
            children=self.children_of(worker.worker_id),
        )

    def children_of(self, worker_id: str) -> tuple[ChildThreads, ...]:
        """The processes that a worker has started."""
        process = self.index.process(worker_id)
        return tuple(self._offspring(worker_id, child) for child in process.children) if process else ()

    def _offspring(self, worker_id: str, child: Process) -> ChildThreads:
        threads = sorted(child.threads, key=lambda thread: (thread.os_thread_id != child.pid, thread.role == "ray"))
        strands = [
            ThreadSummary(
                key=ChildThreadKey(worker_id, child.pid, thread.os_thread_id),
                name=_name_in_child(child, thread),
                worker_id=worker_id,
                activity="waiting" if thread.call else activity_of(None, thread),
                words=call_in_words(thread.call) or self._words(None, thread),
                is_torn=thread.torn,
            )
            for thread in threads
        ]
        return ChildThreads(child, f"child process {child.name}".rstrip(), tuple(strands))

    def first_of(self, worker_id: str) -> Key | None:
        """The first execution of a worker: one that waits, if there is one."""
        activities = {one.key: one.activity for one in self._executions.get(worker_id, {}).values()}
        return min(activities, key=lambda key: activities[key] != "waiting") if activities else None

    def found(self, words: TextFilter) -> dict[str, set[Key]]:
        """By worker: the keys of its executions that have the words; none of these where it has them itself."""
        found: dict[str, set[Key]] = {}
        for worker in self.index.snapshot.workers:
            about = self._about[worker.worker_id]
            if any(words.among(about, terms) for terms in self._terms(worker.worker_id)):
                found[worker.worker_id] = set()
                continue
            executions = self._executions.get(worker.worker_id, {}).values()
            keys = {one.key for one in executions if words.within(one, about)}
            if keys:
                found[worker.worker_id] = keys
        return found

    def _terms(self, worker_id: str) -> Iterator[frozenset[str]]:
        """The ranks and labels of a worker, and of each process that it has started, as terms of a filter."""
        process = self.index.process(worker_id)
        yield self.index.ranks(worker_id).terms
        yield from (self.index.ranks(worker_id, one.pid).terms for one in (process.children if process else ()))

    @cached_property
    def _about(self) -> dict[str, str]:
        workers = self.index.snapshot.workers
        hosts = {node.node_id: node.hostname for node in self.index.snapshot.nodes}
        return {
            one.worker_id: (
                f"{self.name_of(one)} {self.ranks_of(one)} pid {one.pid} node {one.ip} {hosts.get(one.node_id, '')}"
            )
            for one in workers
        }

    def ranks_of(self, worker: Worker, child: Process | None = None) -> str:
        """``rank 3 (tp 1, dp 0)``: of a worker, or of a process that it has started; empty where there are none."""
        return self.index.ranks(worker.worker_id, child.pid if child else None).in_words

    def name_of(self, worker: Worker) -> str:
        """``actor Trainer "left"``, ``driver train.py`` or ``worker``."""
        actor = self.index.actors.get(worker.actor_id or "")
        return names.actor(actor) if actor else names.worker(self.index, worker)

    @cached_property
    def _workers_on(self) -> dict[str, list[Worker]]:
        workers: dict[str, list[Worker]] = defaultdict(list)
        for worker in self.index.snapshot.workers:
            workers[worker.node_id].append(worker)
        return workers

    @cached_property
    def _executions(self) -> dict[str, dict[Key, Execution]]:
        found: dict[str, dict[Key, Execution]] = defaultdict(dict)
        for execution in self.running().executions:
            found[execution.worker_id][execution.key] = execution
        return found

    @cached_property
    def _lull(self) -> AbsenceReasons:
        return AbsenceReasons(self.index, self.vertices)

    def _strand(self, worker_id: str, key: Key, one: Thread | Coroutine) -> ThreadSummary:
        vertex = self.vertices.get(key)
        if vertex is not None:
            name = vertex.label
        elif isinstance(one, Coroutine):
            name = names.coroutine(self.index, worker_id, one)
        else:
            name = names.execution(self.index, worker_id, one, None)
        return ThreadSummary(key, name, worker_id, activity_of(vertex, one), self._words(vertex, one), is_torn(one))

    def _words(self, vertex: Vertex | None, one: Thread | Coroutine) -> str:
        """``ray.get → Clerk.stamp``, ``queue.Queue.get``, or the function that it is in."""
        if vertex is not None and vertex.never is not None:
            return vertex.never
        if vertex is not None and vertex.wait is not None:
            call = vertex.wait.call
            known = [key for key in dict.fromkeys(targets_of(vertex)) if not self.vertices[key].waker_of]
            more = f" (+{len(known) - 1:,} more)" if len(known) > 1 else ""
            return f"{call} → {sentences.name(self.index, self.vertices[known[0]])}{more}" if known else call
        frames = self.index.snapshot.frames_of(one)
        frame = names.user_frame(frames) or (frames[0] if frames else None)
        return frame.function if frame else ""

    # One stack

    def stack(self, key: Key) -> StackPage | None:
        """The page of a thread, a coroutine or anything else in the graph; None where there is nothing of the kind."""
        vertex = self.vertices.get(key)
        one = self._find(key)
        if vertex is not None and vertex.child_pid is None:
            name = vertex.label
        elif one is not None:
            name = self._name_of_stack(key, one)
        elif vertex is not None:
            name = vertex.label
        else:
            return None
        frames = self.index.snapshot.frames_of(one) if one else ()
        dependencies, left_out = self._dependencies(vertex)
        who = details_of(self.index, vertex) if vertex else None
        taken = one.locals if isinstance(one, Thread) else None
        return StackPage(
            key=key,
            name=name,
            place=who.place if who else self._place(_worker_id(key)),
            sentence=sentences.sentence(self.index, self.vertices, vertex).text if vertex else "",
            runs=_runs(frames, one.call.frame if one and one.call else 0),
            call_at=one.call.frame if one and one.call else None,
            call=call_in_words(one.call) if one else "",
            locals={int(index): values for index, values in (taken or {}).items() if index.isdecimal()},
            dependencies=dependencies,
            left_out=left_out,
            is_torn=is_torn(one),
        )

    def frames_of(self, key: Key) -> tuple[Frame, ...]:
        """The frames of a thread or coroutine, leaf first; none where it was not seen."""
        one = self._find(key)
        return self.index.snapshot.frames_of(one) if one else ()

    def path_to(self, key: Key) -> tuple[str, str] | None:
        """The node and the worker of a thread or coroutine, by their ids; None where it has none."""
        vertex = self.vertices.get(key)
        worker = self.index.workers.get((vertex.worker_id if vertex else _worker_id(key)) or "")
        return (worker.node_id, worker.worker_id) if worker else None

    def _find(self, key: Key) -> Thread | Coroutine | None:
        vertex = self.vertices.get(key)
        if vertex is not None:
            return execution_of(self.index, vertex)
        match key:
            case ChildThreadKey(worker_id, pid, os_thread_id):
                child = self.index.child(worker_id, pid)
                threads = child.threads if child else ()
                return next((thread for thread in threads if thread.os_thread_id == os_thread_id), None)
            case CoroutineKey(worker_id, coroutine_id):
                return self.index.coroutine(worker_id, coroutine_id)
            case ThreadKey(worker_id, os_thread_id):
                return self.index.thread(worker_id, os_thread_id)
        return None

    def _name_of_stack(self, key: Key, one: Thread | Coroutine) -> str:
        """What an execution is called that is no vertex."""
        if isinstance(key, ChildThreadKey) and (child := self.index.child(key.worker_id, key.pid)):
            return f"{_name_in_child(child, one)} of child process (pid {child.pid})"
        return self._strand(_worker_id(key), key, one).name

    def _place(self, worker_id: str) -> str:
        worker = self.index.workers.get(worker_id)
        if worker is None:
            return ""
        parts = (self.name_of(worker), self.ranks_of(worker), f"pid {worker.pid}", f"node {worker.ip}")
        return ", ".join(part for part in parts if part)

    def _dependencies(self, vertex: Vertex | None) -> tuple[tuple[DependencyLink, ...], int]:
        if vertex is None or vertex.wait is None:
            return (), 0
        targets = list(dict.fromkeys(targets_of(vertex)))
        groups = group_similar(self.vertices, targets)
        told = tuple(self._dependency_link(tuple(group)) for group in groups[:MAX_DEPENDENCIES])
        return told, sum(map(len, groups[MAX_DEPENDENCIES:]))

    def _dependency_link(self, keys: tuple[Key, ...]) -> DependencyLink:
        vertex = self.vertices[keys[0]]
        who = details_of(self.index, vertex)
        parts = (who.ranks.in_words, f"pid {who.pid}" if who.pid else None, who.node_ip)
        place = ", ".join(part for part in parts if part)
        return DependencyLink(keys, sentences.name(self.index, vertex), place)


def _name_in_child(child: Process, thread: Thread | Coroutine) -> str:
    return "main thread" if thread.os_thread_id == child.pid else f'thread "{thread.name or thread.os_thread_id}"'


def _worker_id(key: Key) -> str:
    return key.worker_id if isinstance(key, ThreadKey | CoroutineKey | ChildThreadKey) else ""


def _runs(frames: tuple[Frame, ...], at_call: int) -> tuple[FrameRun, ...]:
    """A stack, given leaf first, in runs of the user's frames and of others'; the call stands by itself."""
    runs: list[FrameRun] = []
    for index in reversed(range(len(frames))):
        is_foldable = frames[index].origin != "user" and index != at_call
        if runs and runs[-1].is_foldable == is_foldable:
            runs[-1] = runs[-1]._replace(frames=(*runs[-1].frames, (index, frames[index])))
        else:
            runs.append(FrameRun(((index, frames[index]),), is_foldable))
    return tuple(runs)
