"""The workers of one run beside each other: which ranks some of them are, and what only these have in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from dstack.analysis.index.ranks import RANK, Ranks, cut
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.stacks.app_threads import Execution, kind_of
from dstack.model.diagnosis import Vertex


@dataclass(frozen=True, slots=True)
class RankSet:
    """Some workers of one run: their ranks, and what all of these and no others have in common, in words."""

    ranks: tuple[int, ...]
    common: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """``rank 3``, ``ranks 0-2, 5``, ``ranks 4-7 (all of pp 1)``, ``all of stage=rollout``."""
        ranks, *whole = self._parts
        return ranks + "".join(f" ({one})" for one in whole)

    @property
    def aside(self) -> str:
        """The same in parentheses: ``(ranks 4-7, all of pp 1)``."""
        return f"({', '.join(self._parts)})"

    @property
    def _parts(self) -> list[str]:
        whole = f"all of {', '.join(self.common)}" if self.common else ""
        return [part for part in (names.ranks_in_words(self.ranks), whole) if part]


class DistributedRun:
    """The workers of one run, by id, with their ranks; ``is_whole`` unless some of them may be unknown."""

    def __init__(self, members: Mapping[str, Ranks], *, is_whole: bool = True) -> None:
        self._members = members
        ranked = [ranks.rank for ranks in members.values() if ranks.rank is not None]
        self._is_ranked = len(set(ranked)) == len(ranked)
        sizes = {ranks.world_size for ranks in members.values() if ranks.world_size}
        self._is_whole = is_whole and len(sizes) <= 1 and all(size == len(members) for size in sizes)
        self._holders: dict[tuple[str, str], set[str]] = defaultdict(set)
        for worker_id, ranks in members.items():
            for item in ranks.values().items():
                self._holders[item].add(worker_id)

    def rank_set(self, workers: Set[str]) -> RankSet | None:
        """These workers by their ranks and what they have in common; None where nothing distinguishes them."""
        ranks = sorted(rank for one in workers if (rank := self._members[one].rank) is not None)
        ranks = ranks if self._is_ranked and len(ranks) == len(workers) else []
        is_part = 1 < len(workers) < len(self._members)
        common = self._common(workers) if is_part and self._is_whole else ()
        return RankSet(tuple(ranks), common) if ranks or common else None

    def _common(self, workers: Set[str]) -> tuple[str, ...]:
        """The dimensions and labels that choose just these workers: one, or as few as possible together; none else."""
        first = self._members[next(iter(workers))]
        values = {name: value for name, value in first.values().items() if name != RANK}
        shared = [item for item in values.items() if workers <= self._holders[item]]
        alone = [item for item in shared if self._holders[item] == workers]
        chosen = alone[:1] or shared
        for item in chosen if len(chosen) > 1 else ():
            fewer = [one for one in chosen if one != item]
            chosen = fewer if self._chosen_by(fewer) == workers else chosen
        is_exact = bool(chosen) and self._chosen_by(chosen) == workers
        return tuple(cut(first.words(name) or "") for name, _ in chosen) if is_exact else ()

    def _chosen_by(self, items: Iterable[tuple[str, str]]) -> set[str]:
        return set.intersection(*(self._holders[item] for item in items))


class RankSets:
    """All teams of one sample: the workers of one class, job and run."""

    def __init__(self, index: SampleIndex) -> None:
        self._index = index

    def rank_set_of(self, executions: Iterable[Execution | Vertex]) -> RankSet | None:
        """What is known of the workers of these executions; None in child processes, which have ranks of their own."""
        return self.rank_set({_worker_of(execution) for execution in executions})

    def rank_set(self, worker_ids: Collection[str]) -> RankSet | None:
        """What is known of these workers as a part of their team; None where they are of several, or of none."""
        workers = frozenset(worker_ids)
        rank_sets = {self._team_of.get(worker) for worker in workers}
        team = rank_sets.pop() if len(rank_sets) == 1 else None
        return team.rank_set(workers) if team else None

    @cached_property
    def _team_of(self) -> dict[str, DistributedRun]:
        found: dict[str, DistributedRun] = {}
        for members in self._runs():
            if any(ranks.values() for ranks in members.values()):
                is_whole = all(self._index.access(worker_id) == "memory" for worker_id in members)
                found |= dict.fromkeys(members, DistributedRun(members, is_whole=is_whole))
        return found

    def _runs(self) -> Iterator[dict[str, Ranks]]:
        """The workers by class, job and run; those whose run is not known belong to the only one of their class."""
        classes: dict[object, dict[str, dict[str, Ranks]]] = defaultdict(lambda: defaultdict(dict))
        for worker in self._index.snapshot.workers:
            ranks = self._index.ranks(worker.worker_id)
            alike = (kind_of(self._index, worker, None), worker.job_id)
            classes[alike][ranks.world][worker.worker_id] = ranks
        for worlds in classes.values():
            if len(worlds) == 2 and "" in worlds:
                yield {worker_id: ranks for world in worlds.values() for worker_id, ranks in world.items()}
            else:
                yield from worlds.values()


def _worker_of(one: Execution | Vertex) -> str:
    """The id of the worker that an execution is in, empty in a child process."""
    return "" if one.child_pid is not None else one.worker_id or ""
