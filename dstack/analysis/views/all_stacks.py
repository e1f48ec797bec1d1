"""All stacks of one sample: node by node, merged, as pages; and those that a report has chosen, in groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dstack.analysis.index.ranks import RANK
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.names import find_job
from dstack.analysis.stacks.app_threads import Activity, AppExecutions, Execution, Extent, kind_of, running
from dstack.analysis.stacks.peers import AbsenceReasons, AbsentWorker, Outlier, RankSets, absent_workers, outliers
from dstack.analysis.stacks.stack_tree import Grouping, StackBranch, TextFilter, groupings, merge
from dstack.analysis.stacks.weighted_stacks import WeightedStacks
from dstack.analysis.views.stack_pages import ProcessThreads, StackPages, child_threads, thread_summaries, worker_name
from dstack.model.diagnosis import Vertex
from dstack.model.profile import PathStep
from dstack.model.snapshot import Node, Worker
from dstack.model.vertex_keys import Key
from dstack.observed.processes import Process
from dstack.words import grouped, shortly

By = Literal["class", "rank", "process"]
SHOWN_KINDS = 2


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


@dataclass(frozen=True, slots=True)
class StackPosition:
    """Where executions are: the innermost call or function, and the innermost line of user code."""

    name: str
    file: str = ""
    line: int = 0
    is_import: bool = False


@dataclass(frozen=True)
class StackGroup:
    """Executions whose stacks are merged, without a first level of groups in their tree."""

    name: str
    root: StackBranch

    @property
    def executions(self) -> Sequence[Execution]:
        """The executions of the group, sorted by their stacks."""
        return self.root.executions

    @cached_property
    def positions(self) -> list[tuple[StackPosition, int]]:
        """Where they are, with their numbers, the most frequent first."""
        return Counter(map(position_of, self.executions)).most_common()


class ChosenStacks:
    """The stacks of one snapshot, with only the application's frames or ``whole``.

    They are those of one job if given, and only those in ``only``, as :meth:`Stacks.found` returns them. Unless
    ``unfolded``, for other programs, an import is one frame.
    """

    def __init__(
        self,
        stacks: Stacks,
        *,
        job: str | None = None,
        only: Mapping[str, set[Key]] | None = None,
        whole: bool = False,
        unfolded: bool = False,
    ) -> None:
        self.stacks = stacks
        self.index = stacks.index
        self.snapshot = stacks.index.snapshot
        self.whole = whole
        self.only = only
        self.job_id = find_job(self.snapshot, job) if job is not None else None
        self._all = self.stacks.running(whole=whole, unfolded=unfolded)

    @cached_property
    def executions(self) -> tuple[Execution, ...]:
        """The threads and coroutines of the application."""
        found = (one for one in self._all.executions if self.job_id in (None, one.peer_group.job_id))
        return tuple(filter(self._is_chosen, found))

    def _is_chosen(self, execution: Execution) -> bool:
        """Whether it is one of ``only``, or its process is."""
        if self.only is None:
            return True
        keys = self.only.get(execution.worker_id)
        return keys is not None and (not keys or execution.key in keys)

    @cached_property
    def activities(self) -> Counter[Activity]:
        """The number of executions by activity."""
        return Counter(one.activity for one in self.executions)

    @property
    def left_out(self) -> int:
        """The number of threads and coroutines of Ray and its libraries, of all jobs."""
        return self._all.left_out

    @cached_property
    def outliers(self) -> Mapping[Key, Outlier]:
        """The executions that are in other code than most similar ones."""
        return outliers(self.executions, self.stacks.rank_sets)

    @cached_property
    def absent(self) -> tuple[AbsentWorker, ...]:
        """The processes that were not read, and calls whose stacks were not: they may be in any code."""
        found = (one for one in self.stacks.absent_workers if one.why in ("not read", "unreadable"))
        of_job = (one for one in found if self.job_id is None or one.job_id in (None, self.job_id))
        return tuple(of_job) if self.only is None else ()

    def groups(self, by: By) -> list[StackGroup]:
        """The groups: classes with most executions first, ranks in their order, or processes by node."""
        if by == "rank":
            return list(_by_rank(self.executions))
        if by == "process":
            return [StackGroup(self.process_name(worker), merge(self.of_worker(worker))) for worker in self.workers]
        return [StackGroup(name, merge(some)) for name, some in _largest_first(self.executions)]

    @cached_property
    def nodes(self) -> list[tuple[Node, list[Worker]]]:
        """The nodes with their processes; of one job only its processes."""
        found = [
            (node, [one for one in self.stacks.workers_on(node) if self._is_of_job(one)]) for node in self.stacks.nodes
        ]
        return [(node, workers) for node, workers in found if workers]

    @property
    def workers(self) -> Iterator[Worker]:
        """The processes with executions, by node."""
        return (worker for _, workers in self.nodes for worker in workers if self.of_worker(worker))

    def of_worker(self, worker: Worker) -> list[Execution]:
        """The executions of a process."""
        return self._by_worker.get(worker.worker_id, [])

    @cached_property
    def _by_worker(self) -> dict[str, list[Execution]]:
        return grouped((one.worker_id, one) for one in self.executions)

    def _is_of_job(self, worker: Worker) -> bool:
        if self.only is not None:
            return worker.worker_id in self.only
        return self.job_id in (None, worker.job_id) or bool(self.of_worker(worker))

    def process_name(self, worker: Worker) -> str:
        """``actor Trainer "left", pid 7, node 10.0.0.1``."""
        return f"{worker_name(self.index, worker)}, pid {worker.pid}, node {worker.ip}"

    def weighted(self, by: By) -> WeightedStacks:
        """The stacks with their numbers below their groups, for other programs."""
        counted = ((self._path_of(one, by), one.path, 1) for one in self.executions)
        return WeightedStacks.summed(f"Ray cluster {self.snapshot.address}", "executions", counted)

    def _path_of(self, execution: Execution, by: By) -> tuple[str, ...]:
        if by == "process":
            worker = self.index.workers[execution.worker_id]
            return (execution.node, f"{worker_name(self.index, worker)}, pid {worker.pid}")
        return (execution.kind,) if by == "class" else (execution.kind, execution.ranks.words(RANK) or f"no {RANK}")


def position_of(execution: Execution) -> StackPosition:
    """The innermost call or function of an execution, and its innermost line of user code, else of any code."""
    path = execution.path
    if not path:
        return StackPosition("unknown code")
    own: PathStep = next((step for step in reversed(path) if step.origin == "user"), path[-1])
    return StackPosition(path[-1].name, own.file, own.line, path[-1].is_import)


def _largest_first(executions: Iterable[Execution]) -> list[tuple[str, list[Execution]]]:
    kinds = grouped((one.kind, one) for one in executions)
    return sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))


def _by_rank(executions: Iterable[Execution]) -> Iterator[StackGroup]:
    """Ranks whose executions have the same stacks form one group; those without a rank are the last."""
    ranks = grouped((one.ranks.rank, one) for one in executions)
    alike: dict[Hashable, list[int]] = {}
    for rank in sorted(rank for rank in ranks if rank is not None):
        content = Counter((one.kind, one.path, one.activity) for one in ranks[rank])
        alike.setdefault(frozenset(content.items()), []).append(rank)
    for same in alike.values():
        members = [one for rank in same for one in ranks[rank]]
        kinds = shortly(list(dict.fromkeys(one.kind for one in members)), shown=SHOWN_KINDS)
        yield StackGroup(f"{names.ranks_in_words(same)} of {kinds}", merge(members))
    if None in ranks:
        yield StackGroup(f"no {RANK}", merge(ranks[None]))
