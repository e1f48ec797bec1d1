"""Waits in calls on process groups: for the calls of other members, so for the executions that may make them.

Which members have entered a call is certain by their ledgers, which number the collectives of a group. The others must
enter, each of them if the call ends for nobody before that.

Without ledgers, a member has entered a call if any execution of the snapshot is in the same call of the group for its
rank. The members that have not entered must do so. But which members have not is unknown: in a broadcast, the root may
have sent its data and proceeded, and torch.distributed may begin a call without waiting for it (``async_op``). If no
data is in transit and the call does not end, at least one member outside of it has not entered. So a call waits for any
of these. It waits for each of them only if no member can enter without waiting and leave before the others.

No data is in transit if the waiter's thread does not run between two samples (``GroupCall.mark``) and its process uses
hardly any CPU time meanwhile: its library receives and sends nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from dstack.analysis.graph.builder import MANY, GraphBuilder
from dstack.analysis.graph.group_ledgers import GroupLedgers
from dstack.analysis.graph.group_members import (
    BETWEEN_TWO,
    BY_CALLS,
    FORMING,
    Calls,
    Members,
    calls_in,
    calls_of,
    calls_shown,
    group_id,
    group_of,
    is_between_two,
    is_for_all,
    kind_of,
    ranks_in_same,
)
from dstack.analysis.graph.users import Users
from dstack.analysis.solve import reduction
from dstack.analysis.solve.requirements import waits_of
from dstack.model.diagnosis import Group, GroupWait, Target, Vertex, Wait
from dstack.model.vertex_facts import Assumption, RankList, assumption, subject
from dstack.model.vertex_keys import AnyKey, Key, UnknownKey
from dstack.observed.calls import GroupCall
from dstack.observed.processes import Coroutine

DIRECT = ("scatter", "scatter_object_list", "gather", "gather_object")
"""Calls in which each member exchanges data with the root itself, not through other members."""

QUIET_CPU_S = 0.02
QUIET_SHARE = 0.03
"""CPU time of a process in which only Ray's threads run: this much, and this share of the time between samples."""
STOPPED = ("T", "t")
"""States of a process that a signal or a debugger has stopped."""


def add_group_waits(graph: GraphBuilder, users: Users) -> None:
    """Complete the waits in calls on process groups with the members that they depend on."""
    waiting = [vertex for vertex in graph.vertices.values() if vertex.wait and vertex.wait.of_group]
    if not waiting:
        return
    shared_calls = _SharedCalls(graph, users)
    for vertex in waiting:
        graph.add(replace(vertex, wait=shared_calls.wait_of(vertex)))


def with_proven_calls(vertices: Mapping[Key, Vertex]) -> dict[Key, Vertex]:
    """The graph without conclusions from calls on process groups that were read only once.

    One sample is no consistent cut: a rank that has left the call meanwhile cannot be distinguished from one that has
    not entered it. If such a call could never end, it waits for something that was not observed instead.
    """
    found = dict(vertices)
    unproven = [key for key, vertex in vertices.items() if _is_unproven(vertex)]
    stuck = reduction.residue(waits_of(vertices.values())) if unproven else set()
    for key in filter(stuck.__contains__, unproven):
        unknown = UnknownKey("target", (key,))
        found[unknown] = Vertex(key=unknown, kind="unknown", subject=subject("call read once"), unobserved=True)
        wait = vertices[key].wait
        assert wait is not None, "only waits are unproven"
        group = Group(needs=1, targets=(Target(vertex=unknown),))
        found[key] = replace(
            vertices[key], wait=replace(wait, groups=(group,), of_group=None, assumed=(), proven_groups=())
        )
    return found


def _is_unproven(vertex: Vertex) -> bool:
    of_group = vertex.wait.of_group if vertex.wait else None
    return of_group is not None and bool(of_group.missing) and not vertex.is_confirmed


@dataclass(frozen=True, slots=True)
class _SharedCall:
    """A call on a group in one sample: the ranks in it, the missing ranks, and the targets that may bring them.

    It waits for ``each`` of the missing ranks, or else for any.
    """

    inside: tuple[int, ...]
    missing: tuple[int, ...]
    groups: tuple[Group, ...]
    assumptions: tuple[Assumption, ...]


def _others(call: GroupCall) -> list[int]:
    """The other members of a call's group."""
    return [rank for rank in call.group.ranks if rank != call.group.rank]


class _SharedCalls:
    def __init__(self, graph: GraphBuilder, users: Users) -> None:
        self._graph = graph
        self._index = graph.index
        self._calls = calls_of(graph.index)
        self._members = Members(graph, users)
        self._ledgers = GroupLedgers(graph.index)
        self._known: dict[object, _SharedCall] = {}

    def wait_of(self, vertex: Vertex) -> Wait:
        """The wait with the missing members, if it is known that one must enter."""
        wait = vertex.wait
        assert wait is not None, "only vertices that wait are completed"
        assert wait.of_group is not None, "only waits in calls on groups are completed"
        call = wait.of_group.call
        shared = self._shared_call(vertex, call)
        wait = replace(wait, of_group=GroupWait(call=call, inside=shared.inside))
        proof = self._proof(vertex, call)
        if not shared.groups or proof is None or self._may_proceed(vertex.worker_id or "", call):
            return wait
        others = tuple(group for group in wait.groups if not group.has_unknown("other side"))
        of_group = GroupWait(call=call, inside=shared.inside, missing=shared.missing)
        found = replace(wait, groups=(*shared.groups, *others), of_group=of_group, total=len(shared.missing))
        assumptions = tuple(dict.fromkeys((*proof, *shared.assumptions)))
        return replace(found, assumed=assumptions, proven_groups=wait.groups) if assumptions else found

    def _shared_call(self, vertex: Vertex, call: GroupCall) -> _SharedCall:
        """The members in the call and the missing ones; the same for all waiters in the call."""
        of_one = call.group.rank if is_between_two(call) or call.peer == call.group.rank else None
        job = self._members.job_of(vertex.worker_id)
        number = self._ledgers.number_of(call)
        key = (group_of(call), kind_of(call), number, call.peer, of_one, job, call.group.ranks)
        if key not in self._known:
            entered = {} if number is None else self._ledgers.entered(call, number)
            inside = {rank for rank in ranks_in_same(call, self._calls) if entered.get(rank, True)}
            inside.update(rank for rank, has_entered in entered.items() if has_entered)
            missing = self._missing(vertex, call, inside, entered)
            is_each = is_for_all(call) or (
                number is not None and set(missing) <= set(entered) and self._ledgers.is_for_all(call, number)
            )
            groups = self._groups_for(vertex, call, missing, is_each=is_each) if missing else ()
            assumptions = tuple(self._members.assumptions(call, missing))
            self._known[key] = _SharedCall(tuple(sorted({*inside, call.group.rank})), missing, groups, assumptions)
        return self._known[key]

    def _missing(
        self, vertex: Vertex, call: GroupCall, inside: Collection[int], entered: Mapping[int, bool]
    ) -> tuple[int, ...]:
        """The members of which one has to enter; none if the call may end by itself, or if that is unknown."""
        group = call.group
        if not group.world or group.rank not in group.ranks:
            return ()
        if apart := self._with_another_root(call, entered):
            return apart
        needed = self._needed(call, inside, entered)
        missing = tuple(rank for rank in needed if rank not in inside)
        is_apart = missing and all(self._members.are_apart(vertex, call, rank) for rank in missing)
        if self._members.is_ambiguous(vertex, group) and not is_apart:
            return ()
        is_enough = len(missing) < len(needed) and is_between_two(call)
        ever = {rank for calls in self._calls_of_all for rank in ranks_in_same(call, calls)}
        return () if is_enough or not ever.isdisjoint(rank for rank in missing if rank not in entered) else missing

    def _with_another_root(self, call: GroupCall, entered: Mapping[int, bool]) -> tuple[int, ...]:
        """The members that wait for another root under the number of a call that all members have entered."""
        number = self._ledgers.number_of(call)
        if call.peer is None or is_between_two(call) or not all(entered.get(rank) for rank in _others(call)):
            return ()
        own = (one for (group, _), ranks in self._calls.items() if group == group_of(call) for one in ranks.values())
        others = (one for several in own for one in several if one.peer not in (None, call.peer))
        found = {one.group.rank for one in others if not is_between_two(one) and self._ledgers.number_of(one) == number}
        return tuple(sorted(found))

    def _needed(self, call: GroupCall, inside: Collection[int], entered: Mapping[int, bool]) -> list[int]:
        """The other members that the call may wait for.

        In a broadcast they pass on the data of the root. Without ledgers none is needed if the root has entered: that
        another one has not is then unknown.
        """
        others = _others(call)
        if call.peer is None or call.peer == call.group.rank:
            return others
        if call.operation in (*BETWEEN_TWO, *DIRECT):
            return [call.peer]
        return [] if call.peer in inside and not entered else others

    @cached_property
    def _calls_of_all(self) -> list[Calls]:
        snapshot = self._index.snapshot
        return [calls_in(sample) for sample in (*snapshot.samples[:2], *snapshot.readings)]

    def _may_proceed(self, worker_id: str, call: GroupCall) -> bool:
        """Whether a process may end its call by itself: it was stopped, or used CPU time between the samples.

        A library uses CPU time while it sends or receives. No data is moved while a group is created, but some
        libraries poll then.
        """
        shown = [one.process for one in self._members.samples_of(worker_id)]
        processes = [process for process in shown if process is not None]
        if any(process.state in STOPPED for process in processes):
            return True
        if len(processes) < 2 or call.operation in FORMING:
            return False
        first, second = self._index.snapshot.samples[:2]
        between_s = max(0.0, second.ended_s - first.began_s)
        return processes[1].cpu_s - processes[0].cpu_s > QUIET_CPU_S + QUIET_SHARE * between_s

    def _proof(self, vertex: Vertex, call: GroupCall) -> tuple[Assumption, ...] | None:
        """The assumption that equal readings show one call, empty if that is certain; None if they are not equal.

        A call without a mark polls. A task that is a coroutine makes one call, and so does a task of Train or Data
        that a rank has called.
        """
        execution = self._index.execution_of(vertex)
        is_task = isinstance(execution, Coroutine) and execution.is_task
        if call.mark or call.operation in FORMING or is_task or (call.group.library in BY_CALLS and vertex.task_id):
            return ()
        several = calls_shown(self._index, vertex)
        if any(shown is None or dataclasses.replace(shown, fails_at=call.fails_at) != call for shown in several):
            return None
        return (assumption("same call", RankList(ranks=(call.group.rank,)), call.operation),)

    def _groups_for(
        self, vertex: Vertex, call: GroupCall, missing: tuple[int, ...], *, is_each: bool
    ) -> tuple[Group, ...]:
        """Each of the missing members, or any of them; empty if an unknown member may enter."""
        found = [self._members.target(vertex, call, rank) for rank in missing]
        known = tuple(dict.fromkeys(target for target in found if target is not None))
        if not known or (not is_each and None in found):
            return ()
        groups = tuple(Group(needs=1, targets=(one,)) for one in known) if is_each else (Group(needs=1, targets=known),)
        if len(known) <= MANY:
            return groups
        whole = AnyKey("ranks", (*group_id(call.group), call.operation, missing))
        wait = Wait(kind="ranks", groups=groups, total=len(known))
        calls = subject("calls of ranks", RankList(ranks=missing), call.group)
        self._graph.add(Vertex(key=whole, kind="task", subject=calls, wait=wait))
        return (Group(needs=1, targets=(Target(vertex=whole),)),)
