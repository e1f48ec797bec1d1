"""What :mod:`infeasible` and :mod:`orphaned` share: waits for something that can never complete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dstack.analysis.findings.facts.draft import Draft
from dstack.analysis.findings.facts.finding_facts import FindingFacts
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe, in_words
from dstack.analysis.naming.sentences import reason, step_at, subject
from dstack.analysis.solve import reduction
from dstack.model.diagnosis import FindingKind, Step, Vertex
from dstack.model.vertex_keys import Key
from dstack.words import alike


def find_by_request(reduced: ReducedGraph, kind: FindingKind) -> Iterator[Draft]:
    """One finding for all vertices of one name that make the same unsatisfiable request."""
    by_request: dict[tuple[object, bool], list[Key]] = defaultdict(list)
    for key in reduction.dead_ends(reduced.graph):
        vertex = reduced.vertices[key]
        if vertex.never and vertex.never.is_orphaned == (kind == "orphaned"):
            by_request[_request(reduced, vertex), key in reduced.certain].append(key)
    for (_, confirmed), keys in by_request.items():
        yield Draft(reduced, kind, tuple(keys), confirmed=confirmed, behind=reduced.behind(keys))


def _request(reduced: ReducedGraph, vertex: Vertex) -> object:
    """A value that is equal for tasks of one name with the same request, or for calls of one actor."""
    task = reduced.index.tasks.get(vertex.task_id or "")
    if vertex.child_pid is not None:
        return vertex.worker_id, vertex.never
    if task is None:
        return vertex.key
    actor = reduced.index.actors.get(task.actor_id or "")
    selector = {**task.label_selector, **(actor.label_selector if actor else {})}
    called_actor = task.actor_id if task.kind == "ACTOR_TASK" else None
    resources = tuple(sorted(task.required_resources.items()))
    return task.name, called_actor, resources, tuple(sorted(selector.items())), task.placement_group_id


def sentence(facts: FindingFacts, because: str) -> str:
    """What can never run or complete, and why."""
    first = facts.members[0]
    if first.child_pid is not None:
        return _sentence_of_children(facts, because)
    name = f"{describe(first)}{alike(len(facts.members))}"
    if first.never and first.never.why == "unsatisfied":
        return f"{name} cannot run on the present nodes: {because}"
    verb = "run" if first.task_id in facts.reduced.index.tasks or first.task_id is None else "complete"
    return f"{name} can never {verb}: {because}"


def _sentence_of_children(facts: FindingFacts, because: str) -> str:
    """``child process (pid 7) of driver train.py is in ray.get after a fork``."""
    first = facts.members[0]
    processes = {vertex.child_pid for vertex in facts.members}
    name = describe(first) if len(facts.members) == 1 else names.child_process(first.child_pid or 0)
    if len(processes) > 1:
        name = f"{len(processes):,} child processes"
    each = ": each" if len(processes) > 1 else ""
    return f"{name}{_parent_of(facts.reduced.index, first)}{each} {because}"


def _parent_of(index: SampleIndex, vertex: Vertex) -> str:
    """`` of driver train.py``: the worker or driver that has started a child process."""
    worker = index.workers.get(vertex.worker_id or "")
    return f" of {names.process(subjects.process(index, worker.worker_id))}" if worker else ""


def submissions(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The owners of unsatisfiable requests."""
    yield from narrator.similar_steps(facts.members, "", lambda vertex: _submission(narrator, vertex), "pending ")


def _submission(narrator: Narrator, vertex: Vertex) -> Step:
    if vertex.child_pid is not None and vertex.never:
        details = narrator.details(vertex)
        return step_at(f"{subject(vertex, details)} {in_words(vertex.never)}", details, vertex)
    return Step(text=f"{describe(vertex)} {submission(narrator.index, vertex) or reason(vertex)}", vertex=vertex.key)


def submission(index: SampleIndex, vertex: Vertex) -> str:
    """``was submitted by driver train.py (pid 7, node 10.0.0.1)``; empty if the owner is not known."""
    task = index.tasks.get(vertex.task_id or "")
    owner = index.workers.get(task.owner_id) if task else None
    if owner is None:
        return ""
    return f"was submitted by {names.process(subjects.worker(index, owner))} (pid {owner.pid}, node {owner.ip})"
