"""The vertices of a deadlock, and changes of the requirements of their waits."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from dstack.analysis.findings.drafts import Draft
from dstack.analysis.index.sample_index import ANY_CODE
from dstack.analysis.naming.vertex_details import VertexDetails, details_of
from dstack.analysis.solve.requirements import Waits, targets_of
from dstack.call_sites import BARRIER
from dstack.model.diagnosis import CureKind, Vertex, WaitKind
from dstack.model.snapshot import Actor, actor_of_task
from dstack.model.vertex_facts import TaskName
from dstack.model.vertex_keys import Key
from dstack.observed.calls import REF_CALLS
from dstack.observed.processes import OTHER_LANGUAGE_ACCESSES
from dstack.words import grouped

Q = TypeVar("Q")
Edit = Callable[[Waits], None]
"""Changes the requirements of waits; lists of requirements are replaced, never changed."""
REF_WAITS = (*REF_CALLS, "await")
"""The waits of calls for the values of ObjectRefs, also in coroutines."""


@dataclass(frozen=True, eq=False)
class Change:
    """One change with its words; ``cost`` orders changes by how much of a program or cluster they change.

    ``starts`` are calls that could start, of which those with a running call of their function wait as that does.
    """

    kind: CureKind
    cost: float
    text: str
    edit: Edit
    place: VertexDetails | None = None
    starts: tuple[Vertex, ...] = ()


class DeadlockScope:
    """The vertices of a deadlock and of what is blocked behind it, in which changes are found."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.index = draft.reduced.index
        self.vertices = {key: draft.reduced.vertices[key] for key in (*draft.waits, *draft.behind)}
        self.members = draft.reduced.vertices_of(draft.waits)

    def waiting(self, *kinds: WaitKind) -> list[Vertex]:
        """The members with waits of these kinds."""
        return [vertex for vertex in self.members if vertex.wait and vertex.wait.kind in kinds]

    def with_behind(self, members: Iterable[Vertex], queue_of: Callable[[Vertex], Q | None]) -> dict[Q, list[Vertex]]:
        """The members that wait in queues, and what is behind the deadlock in the same queues, by queue."""
        queues = {queue for one in members if (queue := queue_of(one)) is not None}
        found = ((queue_of(one), one) for one in self.vertices.values())
        return grouped((queue, one) for queue, one in found if queue is not None and queue in queues)

    @cached_property
    def not_at_barrier(self) -> list[Vertex]:
        """The members in user code that are not at a barrier of the cycle, nor wait for a member that is."""
        if not any(map(_is_at_barrier, self.draft.reduced.vertices_of(self.draft.cycle))):
            return []
        members = [vertex for vertex in self.members if vertex.kind == "execution" and vertex.wait]
        there = {vertex.key for vertex in members if _is_at_barrier(vertex)}
        arrived = there | {vertex.key for vertex in members if not there.isdisjoint(targets_of(vertex))}
        missing = [one for one in members if one.key not in arrived and arrived.isdisjoint(targets_of(one))]
        return [vertex for vertex in missing if self.draft.reduced.is_in_users_code(vertex.key)]

    @cached_property
    def executions(self) -> list[Vertex]:
        """The members that run code of the user."""
        is_users = self.draft.reduced.is_in_users_code
        return [one for one in self.members if one.kind == "execution" and one.wait and is_users(one.key)]

    @cached_property
    def of_actor(self) -> Mapping[str, list[Vertex]]:
        """The executions of the user by the actors that run them."""
        return grouped((actor_of_task(one.task_id or "") or "", one) for one in self.executions)

    @cached_property
    def _running(self) -> Mapping[tuple[str, str | None], Vertex]:
        """A stuck execution of each function, of each actor and of any."""
        stuck = (vertex for vertex in self.vertices.values() if vertex.kind == "execution" and vertex.wait)
        found: dict[tuple[str, str | None], Vertex] = {}
        for vertex in stuck:
            if name := function_of(vertex):
                found.setdefault((name, actor_of_task(vertex.task_id or "")), vertex)
                found.setdefault((name, ""), vertex)
        return found

    def sibling_of(self, call: Vertex, *, on_its_actor: bool = False) -> Vertex | None:
        """A stuck execution of the function of a call that has not begun: of the same actor, or else of any."""
        name = function_of(call)
        own = self._running.get((name, actor_of_task(call.task_id or "")))
        found = own if own or on_its_actor else self._running.get((name, ""))
        return found if found and found.key != call.key else None

    def start(self, calls: Iterable[Vertex]) -> Edit:
        """Lets queued calls start: each then ends, or waits as the running call of its function does."""
        siblings = {call.key: self.sibling_of(call) for call in calls}

        def edit(waits: Waits) -> None:
            for key, sibling in siblings.items():
                waits[key] = [(1, [sibling.key])] if sibling else []

        return edit

    def is_any_code(self, call: Vertex) -> bool:
        """Whether a call runs any function on its actor, as the loop of a compiled graph: its name says nothing."""
        task = self.index.tasks.get(call.task_id or "")
        return call.is_graph_loop or (task is not None and task.method == ANY_CODE)

    def is_constructor(self, vertex: Vertex) -> bool:
        """Whether it is the creation of an actor."""
        task = self.index.tasks.get(vertex.task_id or "")
        return task is not None and task.kind == "ACTOR_CREATION_TASK"

    def places(self, vertices: Iterable[Vertex]) -> list[tuple[VertexDetails, list[Vertex]]]:
        """The vertices by their function and line of code, as one change of the code changes all of these."""
        found = [(details_of(self.index, vertex), vertex) for vertex in vertices]
        alike = grouped(((one.file, one.line, function_of(vertex)), (one, vertex)) for one, vertex in found if one.file)
        return [(pairs[0][0], [vertex for _, vertex in pairs]) for pairs in alike.values()]

    def actor_of(self, vertex: Vertex) -> Actor | None:
        """The actor of a call."""
        return self.index.actor_of_call(vertex.task_id)

    def is_in_python(self, actor: Actor) -> bool:
        """Whether an actor is not known to be in another language: these have no async methods."""
        process = self.index.process(actor.worker_id or "")
        return process is None or process.access not in OTHER_LANGUAGE_ACCESSES


def _is_at_barrier(vertex: Vertex) -> bool:
    return vertex.wait is not None and vertex.wait.site is BARRIER


def function_of(vertex: Vertex) -> str:
    """The name of the function or method that a call or execution is of; empty for others."""
    first = next(iter(vertex.subject.of), None)
    match vertex.subject.what, first:
        case "task", TaskName():
            return first.request or first.name or ""
        case (("named" | "queued request"), str()):
            return first
    return ""


# Edits


def drop(vertices: Iterable[Vertex]) -> Edit:
    """These do not wait."""
    keys = [vertex.key for vertex in vertices]

    def edit(waits: Waits) -> None:
        waits.update((key, []) for key in keys if key in waits)

    return edit


def without(waiters: Iterable[Vertex], targets: Container[Key]) -> Edit:
    """These do not depend on the targets, as if they had proceeded."""
    keys = [vertex.key for vertex in waiters]

    def edit(waits: Waits) -> None:
        for key in keys:
            kept = []
            for needs, found in waits.get(key, ()):
                others = [target for target in found if target not in targets]
                kept.append((max(0, needs - (len(found) - len(others))), others))
            waits[key] = kept

    return edit


def pass_on(scope: DeadlockScope, callers: Sequence[Vertex]) -> Edit:
    """These return what they wait for, so that whatever waits for their results waits for that itself.

    So does whatever waits for a queued call of their functions, which would return another such ref.
    """
    functions = grouped((function_of(caller), caller) for caller in callers)

    def edit(waits: Waits) -> None:
        queued = [one for one in scope.vertices.values() if one.kind == "task" and function_of(one) in functions]
        returned = {caller.key: waits.get(caller.key, []) for caller in callers}
        own = set(returned)
        for call in queued:
            returned[call.key] = [one for caller in functions[function_of(call)] for one in returned[caller.key]]
        getting = [key for key in waits if (one := scope.vertices[key].wait) and one.kind in REF_WAITS]
        getters = grouped((target, key) for key in getting for _, targets in waits[key] for target in targets)
        waits.update((key, []) for key in own)
        for key, wanted in returned.items():
            for getter in _getters(getters, key, own):
                waits[getter] = [*waits[getter], *wanted]

    return edit


def _getters(getters: Mapping[Key, Sequence[Key]], key: Key, returning: Container[Key]) -> set[Key]:
    """What gets the result of a call, or the result of a call that returns that."""
    found: set[Key] = set()
    pending = [key]
    while pending:
        new = set(getters.get(pending.pop(), ())) - found
        found |= new
        pending += (one for one in new if one in returning)
    return {one for one in found if one not in returning}


def both(first: Edit, second: Edit) -> Edit:
    """One edit after the other."""

    def edit(waits: Waits) -> None:
        first(waits)
        second(waits)

    return edit
