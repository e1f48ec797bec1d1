"""Which ranks of process groups are in which call in a finding, and which of the others are lost, idle or elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.graph.process_groups.calls import BY_CALLS, SENDS, GroupId, group_id, is_between_two
from dstack.analysis.index import task_assignment
from dstack.analysis.naming.vertex_details import execution_of
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Finding, GroupWait, Vertex
from dstack.model import FailedTask, GroupCall
from dstack.vertex_keys import Key

FOLLOWED = 6
"""So many waits are followed back from a library's call to the user's."""


class CollectiveCall(NamedTuple):
    """The ranks that are in the same call of a group, in the order of their ranks."""

    call: GroupCall
    inside: list[Vertex]

    @property
    def ranks(self) -> list[int]:
        """The ranks that are in it."""
        return [group_wait(vertex).call.group.rank for vertex in self.inside]

    @property
    def group(self) -> GroupId:
        """What identifies the group."""
        return group_id(self.call.group)

    @property
    def operation(self) -> str:
        """``all_reduce``, or ``recv from rank 1``."""
        return operation_in_words(self.call)


def ranks_in(finding: Finding, narrator: Narrator) -> GroupRanks:
    """The calls on process groups and the ranks of a finding, which are found once."""
    key = (ranks_in, finding.members, finding.blocked_behind, finding.helpers)
    return narrator.once(key, lambda: GroupRanks(finding, narrator))


def operation_in_words(call: GroupCall) -> str:
    """``all_reduce``; of a send or receive with the other rank: ``recv from rank 1``."""
    if call.peer is None or not is_between_two(call):
        return call.operation
    return f"{call.operation} {'to' if call.operation in SENDS else 'from'} rank {call.peer}"


def has_lost_rank(reduced: ReducedGraph, keys: Iterable[Key]) -> bool:
    """Whether one of these stands for a rank that has died, or whose last call failed, and that no call reaches."""
    vertices = (reduced.vertices[key] for key in keys)
    return any(vertex.absent and (vertex.absent.is_dead or failure_of(reduced, vertex)) for vertex in vertices)


class GroupRanks:
    """The calls on process groups that members of a finding are in, and the ranks that are not in them."""

    def __init__(self, finding: Finding, narrator: Narrator) -> None:
        self._finding = finding
        self._narrator = narrator

    @cached_property
    def calls(self) -> list[CollectiveCall]:
        """The calls that members are in, each with the ranks in it; the largest group first."""
        finding, narrator = self._finding, self._narrator
        members = narrator.vertices_of(finding.members)
        if any(vertex.absent and vertex.never for vertex in members):
            members += narrator.vertices_of(finding.blocked_behind)
        of_members = {_id(group_wait(vertex).call) for vertex in members if is_in_group_call(vertex)}
        several: dict[object, list[Vertex]] = defaultdict(list)
        for vertex in narrator.vertices_of((*finding.members, *finding.blocked_behind)):
            if is_in_group_call(vertex) and (call := _id(group_wait(vertex).call)) in of_members:
                several[call].append(vertex)
        found = [CollectiveCall(group_wait(some[0]).call, sorted(some, key=rank_of)) for some in several.values()]
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
        """What stands for ranks that no execution brings to the call; each rank once."""
        keys = dict.fromkeys((*self._finding.members, *self._finding.helpers))
        found = [(vertex.absent.rank, vertex) for vertex in self._narrator.vertices_of(keys) if vertex.absent]
        return [vertex for _, vertex in sorted(found, key=lambda one: (one[0], str(one[1].key)))]

    @cached_property
    def elsewhere(self) -> list[tuple[Vertex, int]]:
        """The executions among the members that belong to a missing rank, each with that rank."""
        members = self._narrator.vertices_of(self._finding.members)
        waits = [group_wait(vertex) for vertex in members if is_in_group_call(vertex)]
        ranks = {(wait.call.group.library, wait.call.group.world, rank) for wait in waits for rank in wait.missing}
        late = {target: one.absent.rank for one in self.absent if one.absent for target in targets_of(one)}
        found = []
        for vertex in members:
            if vertex.kind == "execution" and vertex.key not in self.described and self._may_be_ranks(vertex):
                process = self._narrator.index.process(vertex.worker_id or "")
                groups = process.process_groups if process else ()
                own = [one.rank for one in groups if (one.library, one.world, one.rank) in ranks]
                rank = own[0] if own else late.get(vertex.key)
                if rank is not None:
                    found.append((vertex, rank))
        return found

    def _may_be_ranks(self, vertex: Vertex) -> bool:
        """Whether it runs a task or code of the user's, or was not seen."""
        execution = execution_of(self._narrator.index, vertex)
        return (
            execution is None
            or vertex.task_id is not None
            or task_assignment.is_user_code(self._narrator.index, execution)
        )

    def caller(self, vertex: Vertex) -> Vertex:
        """The user's execution that is in a call on a group by calling an actor, in which this one stands for it.

        That is the one that has made the call, or where a library's thread has, the one that waits for this thread.
        """
        if group_wait(vertex).call.group.library not in BY_CALLS:
            return vertex
        level, seen = [vertex.key], {vertex.key}
        for _ in range(FOLLOWED):
            before = [one for key in level for one in self._waiters.get(key, ()) if one.key not in seen]
            for one in before:
                execution = execution_of(self._narrator.index, one)
                if execution is not None and task_assignment.is_user_code(self._narrator.index, execution):
                    return one
            level = [one.key for one in before]
            seen.update(level)
        return vertex

    @cached_property
    def _waiters(self) -> dict[Key, list[Vertex]]:
        """The executions that wait for a vertex."""
        found: dict[Key, list[Vertex]] = defaultdict(list)
        for vertex in self._narrator.vertices.values():
            if vertex.kind == "execution":
                for target in dict.fromkeys(targets_of(vertex)):
                    found[target].append(vertex)
        return found


def failure_of(reduced: ReducedGraph, vertex: Vertex) -> FailedTask | None:
    """The last failed call of an actor that runs nothing."""
    absent = vertex.absent
    if absent is None or not absent.is_idle or absent.actor_id is None:
        return None
    failed = [task for task in reduced.index.snapshot.failed_tasks if task.actor_id == absent.actor_id]
    return max(failed, key=lambda task: task.failed_at or 0.0, default=None)


def is_in_group_call(vertex: Vertex) -> bool:
    """Whether it waits in a call on a process group."""
    return vertex.wait is not None and vertex.wait.of_group is not None


def group_wait(vertex: Vertex) -> GroupWait:
    """The wait of a vertex that is in a call on a process group."""
    assert vertex.wait is not None, "only waits are in groups"
    assert vertex.wait.of_group is not None, "only those in calls on groups are"
    return vertex.wait.of_group


def rank_of(vertex: Vertex) -> int:
    """The rank that is in the call on a process group."""
    return group_wait(vertex).call.group.rank


def _id(call: GroupCall) -> tuple[object, ...]:
    """What is one call in all that are in it; a send or receive is for one other rank."""
    return (*group_id(call.group), call.operation, (call.group.rank, call.peer) if is_between_two(call) else None)
