"""What :mod:`infeasible` and :mod:`orphaned` share: something is waited for that can never complete."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import reason, step_at, subject
from dstack.analysis.solve import reduction
from dstack.diagnosis import Finding, FindingKind, Step, Vertex
from dstack.vertex_keys import Key


def find_by_request(reduced: ReducedGraph, kind: FindingKind) -> Iterator[Finding]:
    """One finding for those that ask in vain for the same, by the same name."""
    alike: dict[tuple[object, bool], list[Key]] = defaultdict(list)
    for key in reduction.dead_ends(reduced.graph):
        vertex = reduced.vertices[key]
        if vertex.never_kind == kind:
            alike[_request(reduced, vertex), key in reduced.certain].append(key)
    for (_, confirmed), keys in alike.items():
        yield Finding(kind=kind, confirmed=confirmed, members=tuple(keys), blocked_behind=reduced.behind(keys))


def _request(reduced: ReducedGraph, vertex: Vertex) -> object:
    """What is asked for in vain: equal for tasks of one name and request, or for calls of one actor."""
    task = reduced.index.tasks.get(vertex.task_id or "")
    if vertex.child_pid is not None:
        return vertex.worker_id, vertex.never
    if task is None:
        return vertex.key
    actor = reduced.index.actors.get(task.actor_id or "")
    selector = {**task.label_selector, **(actor.label_selector if actor else {})}
    whose = task.actor_id if task.kind == "ACTOR_TASK" else None
    resources = tuple(sorted(task.required_resources.items()))
    return task.name, whose, resources, tuple(sorted(selector.items())), task.placement_group_id


def sentence(finding: Finding, narrator: Narrator, because: str) -> str:
    """Who can never run, or what can never be given, why, and how many wait for that."""
    members = finding.members
    first = narrator.vertices[members[0]]
    if first.child_pid is not None:
        return _sentence_of_children(finding, narrator, because)
    who = first.label if len(members) == 1 else f"{first.label} ({len(members):,} alike)"
    what = "run" if first.task_id in narrator.index.tasks or first.task_id is None else "complete"
    return f"{who} can never {what}: {because}"


def _sentence_of_children(finding: Finding, narrator: Narrator, because: str) -> str:
    """``child process (pid 7) of driver train.py is in ray.get after a fork``."""
    first = narrator.vertices[finding.members[0]]
    processes = {vertex.child_pid for vertex in narrator.vertices_of(finding.members)}
    who = first.label if len(finding.members) == 1 else names.child_process(first.child_pid or 0)
    if len(processes) > 1:
        who = f"{len(processes):,} child processes"
    each = ": each" if len(processes) > 1 else ""
    return f"{who}{parent_of(narrator, first)}{each} {because}"


def parent_of(narrator: Narrator, vertex: Vertex) -> str:
    """`` of driver train.py``: the worker or driver that has started a child process."""
    worker = narrator.index.workers.get(vertex.worker_id or "")
    actor = narrator.index.actors.get((worker.actor_id if worker else None) or "")
    return f" of {names.actor(actor) if actor else names.worker(narrator.index, worker)}" if worker else ""


def submissions(finding: Finding, narrator: Narrator) -> Iterator[Step]:
    """Who asked for what can never be given."""
    yield from narrator.alike(finding.members, "", lambda key: _submission(narrator, key), "pending ")


def _submission(narrator: Narrator, key: Key) -> Step:
    vertex = narrator.vertices[key]
    if vertex.child_pid is not None:
        who = narrator.member(vertex)
        return step_at(f"{subject(vertex, who)} {vertex.never}", who, vertex)
    return Step(text=f"{vertex.label} {submission(narrator, vertex) or reason(vertex)}", vertex=key)


def submission(narrator: Narrator, vertex: Vertex) -> str:
    """``was submitted by driver train.py (pid 7, node 10.0.0.1)``; empty where its owner is not known."""
    task = narrator.index.tasks.get(vertex.task_id or "")
    owner = narrator.index.workers.get(task.owner_id) if task else None
    if owner is None:
        return ""
    return f"was submitted by {names.worker(narrator.index, owner)} (pid {owner.pid}, node {owner.ip})"
