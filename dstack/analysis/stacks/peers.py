"""Executions beside their peers: those that are in other code than most, and similar workers that are in none."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from dstack.analysis.evidence.coverage import read_states
from dstack.analysis.index import subjects
from dstack.analysis.index.ranks import RANK, Ranks, cut
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.stacks.app_threads import Execution, kind_of
from dstack.analysis.stacks.stack_tree import PathBranch, StackBranch, merge
from dstack.model.diagnosis import Vertex
from dstack.model.snapshot import Actor, Worker
from dstack.model.vertex_keys import Key
from dstack.words import grouped


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


FEW = 4
"""A part is few if it is one execution, or at most one to this number of others."""


@dataclass(frozen=True, slots=True)
class Outlier:
    """An execution that is in other code than most similar ones.

    They have ``shared`` frames in common; ``most`` of ``alike`` executions share the next one. ``rank_set`` are the
    workers of this branch, ``others`` those of the largest, if ranks or labels distinguish them.
    """

    execution: Execution
    shared: int
    most: int
    alike: int
    rank_set: RankSet | None = None
    others: RankSet | None = None

    @property
    def words(self) -> str:
        """``rank 3 is in other code than ranks 0-2``; without ranks ``is in other code than 7 of its 8 peers``."""
        peers = self.alike - 1
        most = f"{f'{self.most:,} of ' if self.most < peers else ''}its {peers:,} peers"
        if self.rank_set is None or not self.rank_set.words:
            return f"is in other code than {most}"
        verb = "is" if len(self.rank_set.ranks) == 1 else "are"
        others = self.others.words if self.others else ""
        return f"{self.rank_set.words} {verb} in other code than {others or most}"


def outliers(executions: Iterable[Execution], rank_sets: RankSets | None = None) -> dict[Key, Outlier]:
    """The outliers by key, at the frame where they diverge from similar executions. Paths are without groups.

    With ``rank_sets`` a larger part is few as well where it is all of a dimension or label, as the second of three
    pipeline stages.
    """
    groups = grouped((execution.peer_group, execution) for execution in executions)
    return {odd.execution.key: odd for alike in groups.values() for odd in _odd(alike, rank_sets)}


def _odd(alike: list[Execution], rank_sets: RankSets | None) -> list[Outlier]:
    """Follow the largest branch down from the root, and collect the executions that diverge from it."""
    found: list[Outlier] = []
    branch = merge(alike)
    while branch.count > len(alike) / 2 and branch.count > 1:
        ending = branch.executions[: branch.own]
        parts = sorted([*(part.executions for part in branch.children), ending], key=len, reverse=True)
        if len(parts[0]) <= len(alike) / 2:
            break
        found += _leaving(parts, branch.depth, len(alike), rank_sets)
        if parts[0] is ending:
            break
        branch = branch.children[0]
    return found


def _leaving(
    parts: list[Sequence[Execution]], shared: int, alike: int, rank_sets: RankSets | None
) -> Iterator[Outlier]:
    """The executions of smaller parts that are few, or a whole rank set."""
    most, *others = parts
    there = _rank_set(most, rank_sets)
    for part in others:
        here = _rank_set(part, rank_sets) if part else None
        if _is_few(len(part), len(most)) or (here and here.common and len(part) < len(most)):
            yield from (Outlier(odd, shared, len(most), alike, here, there) for odd in part)


def _rank_set(executions: Sequence[Execution], rank_sets: RankSets | None) -> RankSet | None:
    return rank_sets.rank_set_of(executions) if rank_sets else None


def _is_few(count: int, most: int) -> bool:
    return count <= max(1, most // FEW) and count < most


class OutlierIndex:
    """A tree's outliers, found by the places where they are: how many are in a branch costs no walk."""

    def __init__(self, root: StackBranch, odd: Iterable[Key]) -> None:
        keys = set(odd)
        self._at = [index for index, execution in enumerate(root.executions) if execution.key in keys]
        self._root = root

    def within(self, branch: PathBranch[Execution]) -> list[Execution]:
        """The outliers in a branch of that tree."""
        begin, end = bisect_left(self._at, branch.begin), bisect_left(self._at, branch.end)
        return [self._root.executions[index] for index in self._at[begin:end]]

    def places(self) -> Iterator[StackBranch]:
        """The branches in which outliers end, in the order of the tree."""
        keys = {execution.key for execution in self.within(self._root)}
        ahead = [self._root]
        while ahead:
            branch = ahead.pop()
            if any(execution.key in keys for execution in branch.executions[: branch.own]):
                yield branch
            ahead += [child for child in reversed(branch.children) if self.within(child)]


Why = Literal["not read", "unreadable", "idle", "dead", "without a process"]
ABSENCES: tuple[Why, ...] = ("not read", "unreadable", "dead", "without a process", "idle")
"""Worst first: a process that was not read, or a call with an unreadable stack, may be anywhere."""


@dataclass(frozen=True, slots=True)
class AbsentWorker:
    """A worker, or an actor without one, of which no stack of the application was read.

    ``kind`` and ``job_id`` are those of :class:`Execution`; of a worker that was not read, the kind is ``worker`` if
    its task is unknown.
    ``detail`` is the end of a sentence, as ``did not answer``.
    """

    kind: str
    job_id: str | None
    name: str
    why: Why
    detail: str
    worker_id: str | None = None


@dataclass(frozen=True, slots=True)
class BranchPeers:
    """The workers of one ``kind`` in one job: their number in a branch, those ``elsewhere``, and the absent ones."""

    kind: str
    job_id: str | None
    here: int
    elsewhere: tuple[Execution, ...]
    absent: tuple[AbsentWorker, ...]

    @property
    def away(self) -> int:
        """The number of workers elsewhere."""
        return len({execution.worker_id for execution in self.elsewhere})

    @property
    def all(self) -> int:
        """The number of all these workers."""
        return self.here + self.away + len(self.absent)


def absent_workers(
    index: SampleIndex, vertices: Mapping[Key, Vertex], executions: Iterable[Execution]
) -> tuple[AbsentWorker, ...]:
    """Actors of the same classes and jobs without an execution, and all workers not read or unreadable."""
    present = list(executions)
    there = {execution.worker_id for execution in present}
    classes = {(execution.kind, execution.peer_group.job_id) for execution in present}
    reasons = AbsenceReasons(index, vertices)
    actors = list(_actors(index, reasons, there, classes))
    listed = {one.worker_id for one in actors if one.worker_id}
    found = [*actors, *_workers(index, reasons, there | listed)]
    return tuple(sorted(found, key=lambda one: (ABSENCES.index(one.why), one.kind, one.name)))


class AbsenceReasons:
    """Why there is no execution of the application in a worker."""

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex]) -> None:
        self._index = index
        self._sights = read_states(index.snapshot)
        self._seen = {vertex.worker_id for vertex in vertices.values() if vertex.kind == "execution"}
        self._tasks = {
            vertex.worker_id: vertex.task_id
            for vertex in vertices.values()
            if vertex.kind == "task" and vertex.worker_id
        }

    def why(self, worker: Worker) -> tuple[Why, str]:
        """The reason, and the end of a sentence about the worker."""
        if self._sights[worker.worker_id] != "seen":
            return "not read", _unread_reason(self._index, worker)
        seen = self._index.worker_samples.get(worker.worker_id)
        if seen is None or not seen.running_task_ids:
            return "idle", "is idle"
        if worker.worker_id in self._seen:
            return "idle", "runs only code of its library"
        return "unreadable", "runs a call, but its stack was not read"

    def task_in(self, worker: Worker) -> str | None:
        """The task that it runs, if its stack was not read."""
        return self._tasks.get(worker.worker_id)


def branch_peers(root: StackBranch, branch: StackBranch, absent: Iterable[AbsentWorker]) -> list[BranchPeers]:
    """The peers of each kind of worker in a branch, the most frequent kind first."""
    here: dict[tuple[str, str | None], set[str]] = {}
    for execution in branch.executions:
        here.setdefault(_team(execution), set()).add(execution.worker_id)
    elsewhere: dict[tuple[str, str | None], list[Execution]] = {team: [] for team in here}
    for execution in root.executions:
        team = _team(execution)
        if team in here and execution.worker_id not in here[team]:
            elsewhere[team].append(execution)
    lost: dict[tuple[str, str | None], list[AbsentWorker]] = {team: [] for team in here}
    for one in absent:
        lost.get((one.kind, one.job_id), []).append(one)
    found = [BranchPeers(*team, len(ids), tuple(elsewhere[team]), tuple(lost[team])) for team, ids in here.items()]
    return sorted(found, key=lambda one: -one.here)


def _team(execution: Execution) -> tuple[str, str | None]:
    return execution.kind, execution.peer_group.job_id


def _actors(
    index: SampleIndex, reasons: AbsenceReasons, there: set[str], classes: set[tuple[str, str | None]]
) -> Iterator[AbsentWorker]:
    """The actors of these classes that have no execution."""
    for actor in index.actors.values():
        kind = names.actor_kind(actor).name
        if (kind, actor.job_id) in classes and actor.worker_id not in there:
            yield _actor(index, reasons, actor, kind)


def _actor(index: SampleIndex, reasons: AbsenceReasons, actor: Actor, kind: str) -> AbsentWorker:
    known = (index.ranks(actor.worker_id or "").in_words, f"pid {actor.pid}" if actor.pid else "")
    place = ", ".join(part for part in known if part)
    name = names.actor(actor) + (f" ({place})" if place else "")
    if actor.state == "DEAD":
        return AbsentWorker(kind, actor.job_id, name, "dead", f"is dead: {actor.death_cause or 'no cause given'}")
    worker = index.workers.get(actor.worker_id or "")
    if worker is None:
        return AbsentWorker(kind, actor.job_id, name, "without a process", f"has no process: it is {actor.state}")
    return AbsentWorker(kind, actor.job_id, name, *reasons.why(worker), worker.worker_id)


def _workers(index: SampleIndex, reasons: AbsenceReasons, listed: set[str]) -> Iterator[AbsentWorker]:
    """The workers that are not listed yet and are not read or unreadable."""
    for worker in index.snapshot.workers:
        if worker.worker_id in listed:
            continue
        why, detail = reasons.why(worker)
        if why in ("not read", "unreadable"):
            actor = index.actors.get(worker.actor_id or "")
            if actor is not None:
                yield _actor(index, reasons, actor, names.actor_kind(actor).name)
                continue
            kind = kind_of(index, worker, reasons.task_in(worker))
            yield AbsentWorker(
                kind, worker.job_id, names.process(subjects.place(index, worker)), why, detail, worker.worker_id
            )


def _unread_reason(index: SampleIndex, worker: Worker) -> str:
    """Why the state and stacks of a worker are unknown."""
    sample = index.worker_samples.get(worker.worker_id)
    if sample is not None and sample.process is not None and sample.process.threads:
        return "did not answer which tasks it runs" if sample.running_task_ids is None else "was read only in part"
    failures = index.snapshot.failures
    its = [one for one in failures if worker.worker_id == one.worker_id or _is_pid(one.pid, one.node_id, worker)]
    its = its or [one for one in failures if one.node_id == worker.node_id and one.pid is None and not one.worker_id]
    return f"was not read: {its[0].reason}" if its else "was not read"


def _is_pid(pid: int | None, node_id: str | None, worker: Worker) -> bool:
    return pid == worker.pid and node_id in (None, worker.node_id)
