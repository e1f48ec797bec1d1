"""Which ranks of process groups are in which call of a finding, and which are lost or elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dstack.analysis.findings.drafts import Draft
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.graph.group_members import BY_CALLS, SENDS, GroupId, group_id, is_between_two
from dstack.analysis.index.sample_index import SampleIndex, is_in_user_code
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import GroupWait, Vertex
from dstack.model.snapshot import FailedTask
from dstack.model.vertex_keys import Key
from dstack.observed.calls import GroupCall, ProcessGroup

MAX_STEPS = 6
"""Waits that are followed from a library's call back to the user's, or from one rank to another."""


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One call on a process group, and the vertices ``inside`` it in the order of their ranks."""

    call: GroupCall
    inside: Sequence[Vertex]

    @property
    def ranks(self) -> list[int]:
        """The ranks that are in the call."""
        return [rank_of(vertex) for vertex in self.inside]

    @property
    def missing(self) -> Sequence[int]:
        """The ranks that the call waits for."""
        return group_wait(self.inside[0]).missing

    @property
    def group(self) -> GroupId:
        """The identity of the group."""
        return group_id(self.call.group)

    @property
    def operation(self) -> str:
        """``all_reduce``; of a send or receive with the other rank: ``recv from rank 1``."""
        if self.call.peer is None or not is_between_two(self.call):
            return self.call.operation
        return f"{self.call.operation} {'to' if self.call.operation in SENDS else 'from'} rank {self.call.peer}"


def has_lost_rank(reduced: ReducedGraph, keys: Iterable[Key]) -> bool:
    """Whether one of these stands for a rank that died, or whose last call failed and that runs nothing."""
    return any(is_dead(vertex) or failure_of(reduced, vertex) for vertex in reduced.vertices_of(keys))


class GroupRanks:
    """The calls on process groups that members of a finding are in, and the ranks that are not in them."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._reduced = draft.reduced

    @cached_property
    def calls(self) -> list[CollectiveCall]:
        """The calls of the members; those of the largest group first."""
        draft, reduced = self._draft, self._reduced
        members = reduced.vertices_of(draft.members)
        if any(vertex.absent and vertex.never for vertex in members):
            members += reduced.vertices_of(draft.blocked_behind)
        of_members = {_identity(group_wait(vertex).call) for vertex in members if is_in_group_call(vertex)}
        by_call: dict[object, list[Vertex]] = defaultdict(list)
        for vertex in reduced.vertices_of((*draft.members, *draft.blocked_behind)):
            if is_in_group_call(vertex) and (identity := _identity(group_wait(vertex).call)) in of_members:
                by_call[identity].append(vertex)
        found = [CollectiveCall(group_wait(some[0]).call, sorted(some, key=rank_of)) for some in by_call.values()]
        sizes: dict[GroupId, int] = defaultdict(int)
        for one in found:
            sizes[one.group] += len(one.inside)
        return sorted(found, key=lambda one: (-sizes[one.group], one.group, one.ranks[:1]))

    @cached_property
    def described(self) -> set[Key]:
        """The vertices that the steps about calls on groups describe."""
        inside = [vertex for one in self.calls for vertex in one.inside]
        return {vertex.key for one in inside for vertex in (one, self.caller(one))}

    @cached_property
    def absent(self) -> list[Vertex]:
        """The helpers that stand for ranks without an execution that could enter the call, by rank."""
        keys = dict.fromkeys((*self._draft.members, *self._draft.helpers))
        found = [(vertex.absent.rank, vertex) for vertex in self._reduced.vertices_of(keys) if vertex.absent]
        return [vertex for _, vertex in sorted(found, key=lambda one: (one[0], str(one[1].key)))]

    @cached_property
    def lost(self) -> list[Vertex]:
        """The absent ranks that ended, died or failed."""
        return [one for one in self.absent if one.never or is_dead(one) or failure_of(self._reduced, one)]

    @cached_property
    def idle(self) -> list[Vertex]:
        """The absent ranks that are alive and run nothing."""
        lost = {vertex.key for vertex in self.lost}
        return [one for one in self.absent if one.absent and one.absent.is_idle and one.key not in lost]

    @cached_property
    def elsewhere(self) -> list[tuple[Vertex, int]]:
        """The executions among the members that belong to a missing rank, each with that rank."""
        members = self._reduced.vertices_of(self._draft.members)
        candidates = [one for one in members if one.key not in self.described and self._may_be_of_rank(one)]
        found = ((vertex, self._missing_rank_of(vertex)) for vertex in candidates)
        return [(vertex, rank) for vertex, rank in found if rank is not None]

    def _missing_rank_of(self, vertex: Vertex) -> int | None:
        """The missing rank of an execution, by the groups of its process or by a helper that needs it."""
        group = self.group_of_missing(vertex)
        return group.rank if group else self._rank_by_execution.get(vertex.key)

    def group_of_missing(self, vertex: Vertex) -> ProcessGroup | None:
        """The membership of an execution's process by which it is a missing rank."""
        process = self._reduced.index.process(vertex.worker_id or "")
        groups = process.process_groups if process else ()
        return next((one for one in groups if (one.library, one.world, one.rank) in self._missing), None)

    @cached_property
    def are_of_several_worlds(self) -> bool:
        """Whether ranks of the calls refer to different sets of processes, so that a rank alone is ambiguous."""
        return len({(one.call.group.library, one.call.group.world) for one in self.calls}) > 1

    @cached_property
    def _missing(self) -> set[tuple[str, str, int]]:
        """The missing ranks, with the library and world of their groups."""
        members = self._reduced.vertices_of(self._draft.members)
        waits = [group_wait(vertex) for vertex in members if is_in_group_call(vertex)]
        return {(wait.call.group.library, wait.call.group.world, rank) for wait in waits for rank in wait.missing}

    @cached_property
    def _rank_by_execution(self) -> dict[Key, int]:
        """The ranks of absent members, by the executions that they need."""
        return {target: one.absent.rank for one in self.absent if one.absent for target in targets_of(one)}

    def _may_be_of_rank(self, vertex: Vertex) -> bool:
        """Whether it is an execution that runs a task or the user's code, or could not be read."""
        index = self._reduced.index
        is_own = index.execution_of(vertex) is None or vertex.task_id is not None or is_in_user_code(index, vertex)
        return vertex.kind == "execution" and is_own

    def caller(self, vertex: Vertex) -> Vertex:
        """The user's execution behind a group call that is a call of an actor; else the vertex itself.

        It made the call, or waits for the library's thread that did.
        """
        if group_wait(vertex).call.group.library not in BY_CALLS:
            return vertex
        level, visited = [vertex.key], {vertex.key}
        for _ in range(MAX_STEPS):
            before = [one for key in level for one in self._waiters.get(key, ()) if one.key not in visited]
            for one in before:
                if is_in_user_code(self._reduced.index, one):
                    return one
            level = [one.key for one in before]
            visited.update(level)
        return vertex

    @cached_property
    def _waiters(self) -> dict[Key, list[Vertex]]:
        """The executions that wait for each vertex."""
        found: dict[Key, list[Vertex]] = defaultdict(list)
        for vertex in self._reduced.vertices.values():
            if vertex.kind == "execution":
                for target in dict.fromkeys(targets_of(vertex)):
                    found[target].append(vertex)
        return found


def is_dead(vertex: Vertex) -> bool:
    """Whether it stands for a rank whose actor has died."""
    return vertex.absent is not None and vertex.absent.is_dead


def failure_of(reduced: ReducedGraph, vertex: Vertex) -> FailedTask | None:
    """The last failed call of an actor that runs nothing."""
    absent = vertex.absent
    if absent is None or not absent.is_idle or absent.actor_id is None:
        return None
    failed = [task for task in reduced.index.snapshot.failed_tasks if task.actor_id == absent.actor_id]
    return max(failed, key=lambda task: task.failed_at or 0.0, default=None)


def worker_of(index: SampleIndex, vertex: Vertex) -> str | None:
    """The worker of an execution, or that of the actor that a call is queued on."""
    if vertex.worker_id is not None:
        return vertex.worker_id
    actor = index.actor_of_call(vertex.task_id)
    return actor.worker_id if actor else None


def is_in_group_call(vertex: Vertex) -> bool:
    """Whether it waits in a call on a process group."""
    return vertex.wait is not None and vertex.wait.of_group is not None


def group_wait(vertex: Vertex) -> GroupWait:
    """The wait of a vertex that is in a call on a process group."""
    assert vertex.wait is not None, "only waits are in groups"
    assert vertex.wait.of_group is not None, "only those in calls on groups are"
    return vertex.wait.of_group


def rank_of(vertex: Vertex) -> int:
    """The rank of a vertex that is in a call on a process group."""
    return group_wait(vertex).call.group.rank


def _identity(call: GroupCall) -> tuple[object, ...]:
    """A value that is equal for all ranks in one call; a send or receive has one other rank."""
    return (*group_id(call.group), call.operation, (call.group.rank, call.peer) if is_between_two(call) else None)
