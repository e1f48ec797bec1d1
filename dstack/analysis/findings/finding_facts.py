"""What a finding is about, as typed data made once: its headline, steps, diagram and fix are made from it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from operator import itemgetter

from dstack.analysis.findings import shared_calls
from dstack.analysis.findings.actor_starts import ActorStarts, actor_starts
from dstack.analysis.findings.cures import cures_of
from dstack.analysis.findings.deadlock_scope import DeadlockScope
from dstack.analysis.findings.drafts import Draft
from dstack.analysis.findings.failures import Failures, identity
from dstack.analysis.findings.group_differences import GroupDifferences
from dstack.analysis.findings.group_ranks import GroupRanks
from dstack.analysis.findings.narration import MAX_COMPARED
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.shared_calls import SharedCall
from dstack.analysis.graph.call_waits import reach_of
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Cure, FailedBefore, RankDifference, Vertex, WaitKind
from dstack.model.snapshot import Actor, FunctionTimes, Node
from dstack.model.vertex_keys import CoroutineKey, Key, ThreadKey
from dstack.observed.node import Task
from dstack.words import grouped

OF_MACHINERY = 1000
"""The waits of the application that count as one of the machinery of libraries."""
FEWEST_CALLS = 3
"""The calls of a function that say what is usual."""
SLOWER, SLACK_S = 3.0, 1.0
"""A call is slow if it takes so many times as long as usual, and so much longer."""
SLOW_S = 10.0
"""A call is slow after so long if it is not known what is usual, and nothing else of the job ends."""


@dataclass(frozen=True, eq=False)
class FindingFacts:
    """The vertices, ranks, shared calls, failures and restarts that the texts of one draft name, in their order.

    ``failures`` are those of the snapshot; those with an identity among the ``reported`` are findings of their own.
    """

    draft: Draft
    failures: Failures
    reported: Collection[object] = ()

    @property
    def reduced(self) -> ReducedGraph:
        """The graph of the vertices."""
        return self.draft.reduced

    @cached_property
    def waits(self) -> list[Vertex]:
        """The vertices that take part, with helpers."""
        return self.reduced.vertices_of(self.draft.waits)

    @cached_property
    def members(self) -> list[Vertex]:
        """The vertices that take part, without helpers."""
        return self.reduced.vertices_of(self.draft.members)

    @cached_property
    def ends(self) -> list[Vertex]:
        """The vertices of the final blockers."""
        return self.reduced.vertices_of(self.draft.ends)

    @cached_property
    def own_members(self) -> list[Vertex]:
        """The members of the application; of an open chain in which only libraries wait, none."""
        return [one for one in self.members if not self.reduced.is_machinery(one.key)]

    @cached_property
    def own_ends(self) -> list[Vertex]:
        """The final blockers that are code of the application or known otherwise, all if none is."""
        own = [
            one for one in self.ends if not (self.reduced.is_machinery(one.key) or self.reduced.is_any_code(one.key))
        ]
        return own or self.ends

    @cached_property
    def known_ends(self) -> list[Vertex]:
        """The same without unknown wakers and any code that can use something."""
        return [end for end in self.own_ends if not (end.waker_of or self.reduced.is_any_code(end.key))]

    @cached_property
    def deadlock(self) -> DeadlockedWaits:
        """The waits as those of a deadlock; of another finding without a cycle."""
        return DeadlockedWaits(self.draft, self.waits)

    @cached_property
    def cures(self) -> tuple[Cure, ...]:
        """The changes that free the deadlock, or part of it; none of another finding."""
        return cures_of(self._scope) if self.draft.kind == "deadlock" else ()

    @property
    def not_at_barrier(self) -> list[Vertex]:
        """The members of a deadlock that keep others at a barrier, and never reach it."""
        return self._scope.not_at_barrier

    @cached_property
    def _scope(self) -> DeadlockScope:
        return DeadlockScope(self.draft)

    @cached_property
    def ranks(self) -> GroupRanks:
        """The calls on process groups, and the ranks in them and elsewhere."""
        return GroupRanks(self.draft)

    @cached_property
    def differences(self) -> GroupDifferences:
        """The ledgers of the process groups, compared."""
        return GroupDifferences(self.reduced, self.ranks)

    @cached_property
    def difference(self) -> RankDifference | None:
        """How ranks of the process groups first differ in their collectives; not in ones that have just begun."""
        is_shown = bool(self.ranks.calls) and (not self.draft.is_open or self.differences.is_overdue())
        return self.differences.first() if is_shown else None

    def others(self, described: Iterable[Key] = ()) -> list[Vertex]:
        """The members outside of the cycle and of calls on groups that are not ``described`` elsewhere."""
        inside = self.ranks.described.union(self.draft.cycle, described)
        return [vertex for vertex in self.members if vertex.key not in inside]

    @cached_property
    def behind(self) -> list[Vertex]:
        """What is blocked behind the members, without helpers and callers of calls on groups."""
        keys = (key for key in self.draft.blocked_behind if key not in self.ranks.described)
        return self.reduced.vertices_of(keys)

    @cached_property
    def shared_calls(self) -> list[SharedCall]:
        """The calls with unknown wakers that the chains end in, those with most executions first."""
        return shared_calls.shared_calls(self.draft)

    @cached_property
    def actor_starts(self) -> list[ActorStarts]:
        """The classes of actors that an open chain creates."""
        keys = (*self.draft.members, *self.draft.ends) if self.draft.is_open else ()
        return list(actor_starts(self.reduced, keys))

    @cached_property
    def other_sides(self) -> list[Vertex]:
        """What holds the objects that the chains end in, in the user's code, and waits itself: it may be to end them.

        Empty if a chain ends in anything else.
        """
        if not self.ends or not all(end.waker_of for end in self.ends):
            return []
        ends = set(self.draft.ends)
        last = [one for one in self.waits if not ends.isdisjoint(targets_of(one))][:MAX_COMPARED]
        keys = dict.fromkeys(key for one in last for key in self._holders(one))
        found = (self.reduced.vertices[key] for key in keys if key in self.reduced.vertices)
        return [one for one in found if one.wait and self.reduced.is_in_users_code(one.key)]

    def _holders(self, waiter: Vertex) -> Iterator[Key]:
        """The threads and coroutines that hold the object of a wait, without those that wait for the same event."""
        worker_id, reach = waiter.worker_id or "", reach_of(self.reduced.index.call_of_vertex(waiter))
        yield from (CoroutineKey(worker_id, one) for one in reach.reached_by_coroutines)
        yield from (ThreadKey(worker_id, one) for one in reach.reached_by)

    @cached_property
    def longest_chain(self) -> list[Vertex]:
        """The longest path from a waiter to the first final blocker, or to what is unsatisfiable."""
        draft, vertices = self.draft, self.reduced.vertices
        ends = draft.ends or list(draft.waits)
        any_code = list(filter(self.reduced.is_any_code, draft.ends))
        waiters = [*draft.waits, *draft.behind, *filter(self.reduced.is_machinery, any_code)]
        is_users, is_machinery = self.reduced.is_in_users_code, self.reduced.is_machinery
        path = longest_chain(vertices, waiters, ends[0], is_users, is_machinery) if ends else []
        if len(path) == 1 and any_code:
            path = longest_chain(vertices, [*waiters, *any_code], ends[0], is_users, is_machinery)
        if path and vertices[path[-1]].kind == "lifetime":
            path += [end for end in ends if end not in path and vertices[end].kind == "execution"][:1]
        return self.reduced.vertices_of(path)

    def age_s(self, vertex: Vertex) -> float | None:
        """For how long a call has run that does not wait; of what else a task does, as a stage of a graph, unknown."""
        is_call = vertex.subject.what == "task" and vertex.wait is None
        return vertex.since.at_most_s if vertex.since and is_call else None

    def usual(self, vertex: Vertex) -> FunctionTimes | None:
        """How long calls of the function that an execution runs have taken so far, if any are known."""
        index = self.reduced.index
        window, task = index.snapshot.task_event_window, index.tasks.get(vertex.task_id or "")
        if window is None or task is None or vertex.subject.what != "task" or not index.snapshot.has_one_time:
            return None
        return window.functions.get(task.job_id, {}).get(task.name)

    @property
    def is_slow(self) -> bool:
        """Whether the first final blocker takes longer than usual, or was restarted or retried.

        If that is not known, whether nothing moves.
        """
        first = next(iter(self.ends), None)
        if first is None or first.kind != "execution" or self.restarted or self.retried:
            return True
        age_s = self.age_s(first)
        usual = self.usual(first)
        if age_s is not None and usual is not None and usual.calls >= FEWEST_CALLS:
            return age_s > SLOWER * usual.usual_s + SLACK_S
        is_lively = self.draft.progress is not None and self.draft.progress.is_lively
        return not is_lively and (age_s is None or age_s > SLOW_S)

    @cached_property
    def failed_before(self) -> tuple[FailedBefore, ...]:
        """The failures that the waits may depend on, or the one that is the subject."""
        return (self.draft.failure,) if self.draft.failure else self.failures.beside(self.draft)

    @cached_property
    def unreported_failures(self) -> list[FailedBefore]:
        """The same without those that are findings of their own."""
        return [failed for failed in self.failed_before if identity(failed) not in self.reported]

    @cached_property
    def restarted(self) -> list[Actor]:
        """The actors that are being restarted, or were restarted since the first attempt of a call of theirs."""
        found: dict[str, Actor] = {}
        for vertex, task in self._tasks:
            actor = self.reduced.index.actor_of_call(vertex.task_id)
            is_repeated_call = task is not None and task.kind == "ACTOR_TASK" and task.attempt > 0
            if actor and actor.num_restarts and (actor.state == "RESTARTING" or is_repeated_call):
                found[actor.actor_id] = actor
        return list(found.values())

    @cached_property
    def retried(self) -> list[tuple[Vertex, Task]]:
        """The tasks that failed before and run or wait again."""
        return [
            (one, task) for one, task in self._tasks if task and task.attempt and task.kind != "ACTOR_CREATION_TASK"
        ]

    @cached_property
    def _tasks(self) -> list[tuple[Vertex, Task | None]]:
        keys = dict.fromkeys((*self.draft.members[:MAX_COMPARED], *self.draft.ends))
        return [(one, self.reduced.index.tasks.get(one.task_id or "")) for one in self.reduced.vertices_of(keys)]


def node_lost_by(index: SampleIndex, task: Task | None) -> Node | None:
    """The dead node on which the last attempt of a task ran that waits to run again; None if it is another's.

    Its owner names that node until the next attempt has a worker (Ray 2.60).
    """
    if task is None or not task.attempt or task.state not in ("PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT"):
        return None
    node = index.nodes.get(task.node_id or "")
    return node if node and not node.alive else None


def longest_chain(
    vertices: Mapping[Key, Vertex],
    waiters: Iterable[Key],
    end: Key,
    is_users: Callable[[Key], bool],
    is_machinery: Callable[[Key], bool] = lambda _: False,
) -> list[Key]:
    """The vertices from a waiter to ``end``, by the fewest waits between these two, first of all those of machinery.

    The waiter is the farthest one in the user's code; if none is in the user's code, the farthest of all.
    """
    before = grouped((target, key) for key in waiters for target in targets_of(vertices[key]))
    after: dict[Key, Key | None] = {}
    ahead: list[tuple[int, int, Key, Key | None]] = [(0, 0, end, None)]
    farthest, in_users_code = (-1, end), (0, end)
    count = 0
    while ahead:
        cost, _, key, following = heappop(ahead)
        if key in after:
            continue
        after[key] = following
        farthest = max(farthest, (cost, key), key=itemgetter(0))
        if key != end and is_users(key):
            in_users_code = max(in_users_code, (cost, key), key=itemgetter(0))
        step = OF_MACHINERY if is_machinery(key) else 1
        for waiter in sorted(before.get(key, ()), key=str):
            count += 1
            heappush(ahead, (cost + step, count, waiter, key))
    return _path(after, (in_users_code if in_users_code[0] else farthest)[1])


def _path(after: Mapping[Key, Key | None], start: Key) -> list[Key]:
    path: list[Key] = []
    key: Key | None = start
    while key is not None:
        path.append(key)
        key = after[key]
    return path


QUEUES: tuple[WaitKind, ...] = ("actor slot", "event loop")
"""The waits of a call that has not begun."""


@dataclass(frozen=True, eq=False)
class DeadlockedWaits:
    """The waits of the draft of a deadlock; ``members`` are all vertices that take part, with helpers."""

    draft: Draft
    members: list[Vertex]

    @cached_property
    def cycle(self) -> list[Vertex]:
        """The cycle in order, with helpers."""
        return self.draft.reduced.vertices_of(self.draft.cycle)

    @cached_property
    def shown_cycle(self) -> list[Vertex]:
        """The cycle without helpers."""
        return [vertex for vertex in self.cycle if not self.draft.reduced.is_helper(vertex.key)]

    @cached_property
    def following(self) -> dict[Key, Key]:
        """The vertex after each in the cycle that is shown."""
        keys = [vertex.key for vertex in self.shown_cycle]
        return dict(zip(keys, (*keys[1:], *keys[:1]), strict=True))

    def alike(self, vertex: Vertex) -> list[Vertex]:
        """A vertex of the cycle, and the members that do the same: of its name, process, line and call.

        Only where any of many could end the waits, so that any of these could be in the cycle instead.
        """
        return [vertex, *self._alike.get(vertex.key, ())]

    @cached_property
    def _alike(self) -> dict[Key, list[Vertex]]:
        if not any(self.draft.reduced.is_open_to_many(one.key) for one in self.shown_cycle):
            return {}
        labels = {describe(one) for one in self.shown_cycle}
        others = set(self.draft.cycle)
        candidates = (one for one in self.members if one.key not in others and describe(one) in labels)
        found = grouped((self._likeness(one), one) for one in candidates)
        return {one.key: found.pop(self._likeness(one), []) for one in self.shown_cycle}

    def _likeness(self, vertex: Vertex) -> object:
        details = details_of(self.draft.reduced.index, vertex)
        call = vertex.wait and vertex.wait.call
        return vertex.kind, describe(vertex), details.actor_id, details.pid, details.file, details.line, call


def has_not_begun(vertex: Vertex) -> bool:
    """Whether it is a call or request that has not begun because another one occupies its slot."""
    if vertex.wait is None:
        return False
    return (vertex.kind == "task" and vertex.wait.kind in QUEUES) or (
        vertex.wait.kind == "Serve slot" and bool(vertex.wait.limit)
    )
