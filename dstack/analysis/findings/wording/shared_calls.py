"""Alike executions in a call that something unknown must end, as a collective: which are in it, which are not."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack import words
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.narration import Narrator, more
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import step_at
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Finding, Step, Vertex
from dstack.model import Actor
from dstack.vertex_keys import Key

SHOWN_GROUPS = 3
SHOWN_ABSENT = 3


@dataclass(frozen=True)
class SharedCall:
    """Alike executions of one job: those ``inside`` the call, and those that are ``absent``.

    Alike are those of one task, by its name; of threads that are not known to run a certain task, those of one actor,
    and then nobody counts as absent. ``idle`` are actors of the same class that do not run that task, dead or alive.
    """

    call: str
    name: str
    inside: Sequence[Vertex]
    absent: Sequence[Vertex]
    idle: Sequence[Actor] = ()

    @property
    def is_most(self) -> bool:
        """Whether the call is where they belong, by majority, so that the others are the odd ones."""
        return len(self.inside) > len(self.absent) + len(self.idle)


def shared_calls(finding: Finding, narrator: Narrator) -> list[SharedCall]:
    """The groups at the ends of a finding's chains, the largest first; none for those absent from a larger one."""
    return narrator.once((shared_calls, finding.members), lambda: _gatherings(finding, narrator.reduced))


def _gatherings(finding: Finding, reduced: ReducedGraph) -> list[SharedCall]:
    groups: dict[tuple[str, str, str | None, bool], list[Vertex]] = defaultdict(list)
    for vertex in map(reduced.vertices.__getitem__, finding.members):
        for call in sorted({call for key in targets_of(vertex) if (call := reduced.vertices[key].waker_of)}):
            kind = (call, *_similarity(reduced, vertex))
            groups[kind].append(vertex)
    found: list[SharedCall] = []
    odd: set[Key] = set()
    for (call, name, job, is_task), inside in sorted(groups.items(), key=lambda group: -len(group[1])):
        if odd.issuperset(vertex.key for vertex in inside):
            continue
        keys = {vertex.key for vertex in inside}
        alike = reduced.running_tasks.get((name, job), ()) if is_task else ()
        absent = [vertex for vertex in alike if vertex.key not in keys]
        idle = _idle_actors(reduced, [*inside, *absent], job) if is_task else []
        found.append(SharedCall(call, name, inside, absent, idle))
        odd.update(vertex.key for vertex in found[-1].absent if found[-1].is_most)
    return found


def _similarity(reduced: ReducedGraph, vertex: Vertex) -> tuple[str, str | None, bool]:
    """What makes executions alike: a name and a job; and whether the name is a task's."""
    worker = reduced.index.workers.get(vertex.worker_id or "")
    actor = reduced.index.actors.get((worker.actor_id if worker else None) or "")
    if vertex.task_id is None and actor is not None:
        kind = "threads" if vertex.coroutine_id is None else "asyncio tasks"
        return f"{kind} of actor {actor.class_name}", reduced.job_of(vertex), False
    return vertex.label, reduced.job_of(vertex), vertex.task_id is not None


def _idle_actors(reduced: ReducedGraph, running: Sequence[Vertex], job: str | None) -> list[Actor]:
    """The other actors of their class in the job, where all of these run in actors of one class."""
    actors = [names.actor_of(reduced.index, vertex.task_id or "") for vertex in running]
    classes = {actor.class_name if actor else None for actor in actors}
    if len(classes) > 1 or None in classes or len(running) == 1:
        return []
    busy = {actor.actor_id for actor in actors if actor}
    everybody = reduced.index.snapshot.actors
    return [a for a in everybody if a.class_name in classes and a.job_id == job and a.actor_id not in busy]


def shared_call_steps(groups: Sequence[SharedCall], narrator: Narrator, drawn: Container[Key] = ()) -> Iterator[Step]:
    """For each group: how many are in the call, which ranks, where the first of them is, and which are not in it.

    Where one of them is among those ``drawn``, its place is known already.
    """
    for group in groups[:SHOWN_GROUPS]:
        is_drawn = any(one.key in drawn for one in group.inside)
        yield Step(text=_in_call(group, narrator)) if is_drawn else _inside(group, narrator)
        if group.is_most:
            for vertex in group.absent[:SHOWN_ABSENT]:
                step = narrator.step(vertex.key)
                yield replace(step, text=f"Not in this call: {step.text}")
            yield from (_idle(actor, group.name) for actor in group.idle[:SHOWN_ABSENT])
            unshown = max(0, len(group.absent) - SHOWN_ABSENT) + max(0, len(group.idle) - SHOWN_ABSENT)
            yield from more(unshown, "not in this call")
    yield from more(len(groups) - SHOWN_GROUPS, "such calls")


def _idle(actor: Actor, name: str) -> Step:
    is_dead = actor.state == "DEAD"
    why = f"has died: {actor.death_cause or 'no cause given'}" if is_dead else f"does not run {name}"
    return Step(text=f"Not in this call: {names.actor(actor)}{f' (pid {actor.pid})' if actor.pid else ''}, which {why}")


def _inside(group: SharedCall, narrator: Narrator) -> Step:
    first = narrator.member(group.inside[0])
    if len(group.inside) + len(group.absent) == 1:
        name = group.name if group.inside[0].task_id else group.inside[0].label
        return step_at(f"{name} ({first.place}) waits in {group.call}", first, group.inside[0])
    return step_at(f"{_in_call(group, narrator)}; the first ({first.place}) is at", first, group.inside[0])


def _in_call(group: SharedCall, narrator: Narrator) -> str:
    ranks = narrator.teams.slice_of(group.inside)
    return words.capitalised(shared_call_in_words(group, f" {ranks.aside}" if ranks else ""))


def shared_call_in_words(group: SharedCall, which: str = "") -> str:
    """``3 of 4 Trainer.step wait in threading.Event.wait``."""
    count, total = len(group.inside), len(group.inside) + len(group.absent)
    if total == 1:
        return f"{group.inside[0].label} waits in {group.call}"
    who = ("both" if count == 2 else f"all {count}") if count == total else f"{count} of {total}"
    calls = " calls" if group.inside[0].task_id else ""
    return f"{who} {group.name}{calls}{which} {words.word(count, 'waits', 'wait')} in {group.call}"
