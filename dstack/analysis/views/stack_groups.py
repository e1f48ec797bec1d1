"""All stacks of a cluster in groups, for reports: by class, by rank, or by process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dstack.analysis.index.ranks import RANK
from dstack.analysis.naming import names
from dstack.analysis.naming.job_selection import find_job
from dstack.analysis.stacks.app_threads import Activity, Execution, PathStep
from dstack.analysis.stacks.peers import AbsentWorker, Outlier, outliers
from dstack.analysis.stacks.stack_tree import StackBranch, TextFilter, merge
from dstack.analysis.stacks.weighted_stacks import WeightedStacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.stack_pages import worker_name
from dstack.model.snapshot import Node, Worker
from dstack.model.vertex_keys import Key
from dstack.words import grouped, shortly

By = Literal["class", "rank", "process"]
SHOWN_KINDS = 2


@dataclass(frozen=True, slots=True)
class Position:
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
    def positions(self) -> list[tuple[Position, int]]:
        """Where they are, with their numbers, the most frequent first."""
        return Counter(map(position_of, self.executions)).most_common()


class ChosenStacks:
    """The stacks of one snapshot, with only the application's frames or ``whole``.

    They are those of one job if given, and only those that have all words of ``only`` (:class:`TextFilter`). Unless
    ``unfolded``, for other programs, an import is one frame.
    """

    def __init__(
        self,
        analysed: AnalysedSnapshot,
        *,
        job: str | None = None,
        only: str = "",
        whole: bool = False,
        unfolded: bool = False,
    ) -> None:
        self.stacks = analysed.stacks
        self.snapshot = analysed.snapshot
        self.index = analysed.merged_index
        self.whole = whole
        self._only = TextFilter(only)
        self.job_id = find_job(self.snapshot, job) if job is not None else None
        self._all = self.stacks.running(whole=whole, unfolded=unfolded)

    @cached_property
    def executions(self) -> tuple[Execution, ...]:
        """The threads and coroutines of the application."""
        found = (one for one in self._all.executions if self.job_id in (None, one.peer_group.job_id))
        return tuple(filter(self._is_chosen, found))

    def _is_chosen(self, execution: Execution) -> bool:
        """Whether it has the words of ``only``, or its process has them."""
        if not self._only:
            return True
        keys = self._found.get(execution.worker_id)
        return keys is not None and (not keys or execution.key in keys)

    @cached_property
    def _found(self) -> dict[str, set[Key]]:
        return self.stacks.found(self._only)

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
        return () if self._only else tuple(of_job)

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
        if self._only:
            return worker.worker_id in self._found
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


def position_of(execution: Execution) -> Position:
    """The innermost call or function of an execution, and its innermost line of user code, else of any code."""
    path = execution.path
    if not path:
        return Position("unknown code")
    own: PathStep = next((step for step in reversed(path) if step.origin == "user"), path[-1])
    return Position(path[-1].name, own.file, own.line, path[-1].is_import)


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
