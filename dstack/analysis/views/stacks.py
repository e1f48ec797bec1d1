"""All stacks of one sample: merged, node by node, and as pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.stacks.app_threads import Activity, AppExecutions, Execution, Extent, kind_of, running
from dstack.analysis.stacks.peers import AbsenceReasons, AbsentWorker, Outlier, absent_workers, outliers
from dstack.analysis.stacks.rank_sets import RankSets
from dstack.analysis.stacks.stack_tree import Grouping, TextFilter, groupings
from dstack.analysis.views.stack_pages import ProcessThreads, StackPages, child_threads, thread_summaries, worker_name
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Node, Worker
from dstack.model.vertex_keys import Key
from dstack.observed.processes import Process
from dstack.words import grouped


class Stacks:
    """All stacks of one sample; expensive results are computed on demand and cached."""

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex]) -> None:
        self.index = index
        self.vertices = vertices
        self._running: dict[Extent, AppExecutions] = {}
        self._outliers: dict[bool, dict[Key, Outlier]] = {}
        self.pages = StackPages(index, vertices)

    # Merged

    def running(self, *, whole: bool = False, unfolded: bool = False) -> AppExecutions:
        """The application's executions, with whole stacks or only with user frames; imports are one frame there."""
        extent: Extent = "whole" if whole else "unfolded" if unfolded else "own"
        if extent not in self._running:
            self._running[extent] = running(self.index, self.vertices, extent)
        return self._running[extent]

    def outliers(self, *, whole: bool = False) -> dict[Key, Outlier]:
        """The executions that are in other code than most similar ones, by key."""
        if whole not in self._outliers:
            self._outliers[whole] = outliers(self.running(whole=whole).executions, self.rank_sets)
        return self._outliers[whole]

    @cached_property
    def groupings(self) -> tuple[Grouping | None, ...]:
        """The groupings that apply to these executions."""
        return groupings(self.running().executions)

    @cached_property
    def rank_sets(self) -> RankSets:
        """The workers of each distributed run, to name a part of them by ranks."""
        return RankSets(self.index)

    def ranks_in_words(self, executions: Iterable[Execution]) -> str:
        """``ranks 4-7 (all of pp 1)``: the workers of some executions; empty if no rank distinguishes them."""
        found = self.rank_sets.rank_set_of(executions)
        return found.words if found else ""

    @cached_property
    def absent_workers(self) -> tuple[AbsentWorker, ...]:
        """The workers without an execution."""
        return absent_workers(self.index, self.vertices, self.running().executions)

    # Node by node

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes with workers, the head first."""
        found = (node for node in self.index.snapshot.nodes if node.node_id in self._workers_on)
        return tuple(sorted(found, key=lambda node: not node.is_head))

    @cached_property
    def node_names(self) -> Mapping[str, str]:
        """The names of all nodes by their ids."""
        return names.nodes(self.index.snapshot.nodes)

    def workers_on(self, node: Node) -> tuple[Worker, ...]:
        """The workers of a node: drivers first, then workers with executions."""
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
        """By process id; behind these, workers with ranks by class and rank."""
        rank = self.index.ranks(worker.worker_id).rank
        return ("", 0, worker.pid) if rank is None else (kind_of(self.index, worker, None), rank, worker.pid)

    @cached_property
    def activities(self) -> dict[str, dict[Activity, int]]:
        """The number of executions by worker and activity."""
        counts: dict[str, dict[Activity, int]] = {}
        for execution in self.running().executions:
            of_worker = counts.setdefault(execution.worker_id, {})
            of_worker[execution.activity] = of_worker.get(execution.activity, 0) + 1
        return counts

    def process_threads(self, worker: Worker) -> ProcessThreads:
        """All threads and coroutines of a worker."""
        keys = self._executions.get(worker.worker_id, {})
        threads = thread_summaries(self.index, self.vertices, worker.worker_id)
        return ProcessThreads(
            worker=worker,
            name=worker_name(self.index, worker),
            threads=tuple(thread for thread in threads if thread.key in keys),
            others=tuple(thread for thread in threads if thread.key not in keys),
            trouble="" if keys else self._absence_reasons.why(worker)[1],
            children=child_threads(self.index, worker.worker_id),
        )

    def first_of(self, worker_id: str) -> Key | None:
        """The first execution of a worker that waits, else its first one."""
        activities = {one.key: one.activity for one in self._executions.get(worker_id, {}).values()}
        return min(activities, key=lambda key: activities[key] != "waiting") if activities else None

    def found(self, words: TextFilter) -> dict[str, set[Key]]:
        """The keys of matching executions by worker; an empty set if the worker itself matches."""
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
            one.worker_id: f"{worker_name(self.index, one)} {self.ranks_of(one)} pid {one.pid} node {one.ip} "
            + hosts.get(one.node_id, "")
            for one in workers
        }

    def ranks_of(self, worker: Worker, child: Process | None = None) -> str:
        """``rank 3 (tp 1, dp 0)``: of a worker, or of a process that it has started; empty if it has none."""
        return self.index.ranks(worker.worker_id, child.pid if child else None).in_words

    @cached_property
    def _workers_on(self) -> dict[str, list[Worker]]:
        return grouped((worker.node_id, worker) for worker in self.index.snapshot.workers)

    @cached_property
    def _executions(self) -> dict[str, dict[Key, Execution]]:
        found: dict[str, dict[Key, Execution]] = defaultdict(dict)
        for execution in self.running().executions:
            found[execution.worker_id][execution.key] = execution
        return found

    @cached_property
    def _absence_reasons(self) -> AbsenceReasons:
        return AbsenceReasons(self.index, self.vertices)
