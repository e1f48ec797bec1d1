"""Calls with unknown wakers that similar executions share: which are in the call, which are absent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack import words
from dstack.analysis.findings.drafts import Draft
from dstack.analysis.findings.narration import Narrator, more
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.sentences import step_at
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Step, Vertex
from dstack.model.snapshot import Actor
from dstack.model.vertex_keys import Key


@dataclass(frozen=True, slots=True)
class Sort:
    """What similar executions have in common: the name of their task, or of their actor, and their job."""

    name: str
    job: str | None
    is_task: bool


@dataclass(frozen=True, slots=True)
class SharedCall:
    """A call with an unknown waker, the similar executions ``inside`` it, and those ``absent`` from it.

    Threads that are not known to run a certain task are similar if they are of one actor; then none is absent.
    ``idle`` are actors of the same class that do not run the task, dead or alive.
    """

    call: str
    name: str
    inside: Sequence[Vertex]
    absent: Sequence[Vertex]
    idle: Sequence[Actor] = ()

    @property
    def is_shared(self) -> bool:
        """Whether other executions are in the call too, or could be."""
        return len(self.inside) > 1 or bool(self.absent or self.idle)

    @property
    def is_most(self) -> bool:
        """Whether most of the executions are in the call, so that the others are the exceptions."""
        return len(self.inside) > len(self.absent) + len(self.idle)


def shared_calls(draft: Draft) -> list[SharedCall]:
    """The calls at the ends of a finding's chains, those with most executions first."""
    reduced = draft.reduced
    by_call: dict[tuple[str, Sort], list[Vertex]] = defaultdict(list)
    for vertex in reduced.vertices_of(draft.members):
        wakers = (reduced.vertices[key].waker_of for key in targets_of(vertex))
        for call in sorted({waker.text for waker in wakers if waker}):
            by_call[call, _sort(reduced, vertex)].append(vertex)
    found: list[SharedCall] = []
    exceptions: set[Key] = set()
    for (call, sort), inside in sorted(by_call.items(), key=lambda item: -len(item[1])):
        keys = {vertex.key for vertex in inside}
        if keys <= exceptions:
            continue  # these are shown as absent from a larger call
        similar = reduced.running_tasks.get((sort.name, sort.job), ()) if sort.is_task else ()
        absent = [vertex for vertex in similar if vertex.key not in keys]
        idle = _idle_actors(reduced, [*inside, *absent], sort.job) if sort.is_task else []
        found.append(SharedCall(call, sort.name, inside, absent, idle))
        exceptions.update(vertex.key for vertex in absent if found[-1].is_most)
    return found


def _sort(reduced: ReducedGraph, vertex: Vertex) -> Sort:
    actor = reduced.index.actor_of_worker(vertex.worker_id)
    if vertex.task_id is None and actor is not None:
        kind = "threads" if vertex.coroutine_id is None else "asyncio tasks"
        return Sort(f"{kind} of actor {actor.class_name}", reduced.job_of(vertex), is_task=False)
    return Sort(describe(vertex), reduced.job_of(vertex), is_task=vertex.task_id is not None)


def _idle_actors(reduced: ReducedGraph, running: Sequence[Vertex], job: str | None) -> list[Actor]:
    """The other actors of the class in the job, if all of these executions run in actors of one class."""
    actors = [reduced.index.actor_of_call(vertex.task_id) for vertex in running]
    classes = {actor.class_name if actor else None for actor in actors}
    if len(classes) > 1 or None in classes or len(running) == 1:
        return []
    busy = {actor.actor_id for actor in actors if actor}
    of_class = (one for one in reduced.index.snapshot.actors if one.class_name in classes and one.job_id == job)
    return [actor for actor in of_class if actor.actor_id not in busy]


# Words


def shared_call_steps(calls: Sequence[SharedCall], narrator: Narrator, drawn: Container[Key] = ()) -> Iterator[Step]:
    """For each call: how many are in it, which ranks, the place of the first, and which are not in it.

    Where one of them is among those ``drawn``, the place is left out.
    """
    for call in calls[: words.SHOWN]:
        is_drawn = any(one.key in drawn for one in call.inside)
        yield Step(text=_with_ranks(call, narrator)) if is_drawn else _inside(call, narrator)
        if call.is_most:
            yield from _not_inside(call, narrator)
    yield from more(len(calls) - words.SHOWN, "such calls")


def _not_inside(call: SharedCall, narrator: Narrator) -> Iterator[Step]:
    for vertex in call.absent[: words.SHOWN]:
        step = narrator.step(vertex)
        yield replace(step, text=f"Not in this call: {step.text}")
    yield from (_idle(actor, call.name) for actor in call.idle[: words.SHOWN])
    omitted = max(0, len(call.absent) - words.SHOWN) + max(0, len(call.idle) - words.SHOWN)
    yield from more(omitted, "not in this call")


def _idle(actor: Actor, name: str) -> Step:
    is_dead = actor.state == "DEAD"
    why = f"has died: {actor.death_cause or 'no cause given'}" if is_dead else f"does not run {name}"
    return Step(text=f"Not in this call: {names.actor(actor)}{f' (pid {actor.pid})' if actor.pid else ''}, which {why}")


def _inside(call: SharedCall, narrator: Narrator) -> Step:
    vertex = call.inside[0]
    first = narrator.details(vertex)
    if len(call.inside) + len(call.absent) == 1:
        name = call.name if vertex.task_id else describe(vertex)
        return step_at(f"{name} ({first.place}) waits in {call.call}", first, vertex)
    return step_at(f"{_with_ranks(call, narrator)}; the first ({first.place}) is at", first, vertex)


def _with_ranks(call: SharedCall, narrator: Narrator) -> str:
    ranks = narrator.rank_sets.rank_set_of(call.inside)
    return words.capitalised(shared_call_in_words(call, f" {ranks.aside}" if ranks else ""))


def shared_call_in_words(call: SharedCall, ranks: str = "") -> str:
    """``3 of 4 Trainer.step wait in threading.Event.wait``."""
    count, total = len(call.inside), len(call.inside) + len(call.absent)
    if total == 1:
        return f"{describe(call.inside[0])} waits in {call.call}"
    share = ("both" if count == 2 else f"all {count}") if count == total else f"{count} of {total}"
    calls = " calls" if call.inside[0].task_id else ""
    return f"{share} {call.name}{calls}{ranks} {words.word(count, 'waits', 'wait')} in {call.call}"
