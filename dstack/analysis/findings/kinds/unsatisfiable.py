"""Infeasible and orphaned: waits for resources that no node has, and for what a lost producer would have made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import dropwhile

from dstack.analysis.findings import collectives
from dstack.analysis.findings.drafts import Draft
from dstack.analysis.findings.finding_facts import FindingFacts, node_lost_by
from dstack.analysis.findings.group_ranks import has_lost_rank
from dstack.analysis.findings.kinds.open_chain import lost_with
from dstack.analysis.findings.narration import Narrator
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.graph.resource_requests import asked_labels
from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.shown_frames import user_frame
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe, in_words
from dstack.analysis.naming.sentences import reason, step_at, subject
from dstack.analysis.solve import reduction
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Advice, FindingKind, Step, Vertex
from dstack.model.snapshot import Actor
from dstack.model.vertex_keys import Key
from dstack.observed.node import Task
from dstack.words import alike, base_name, listed

FORK = "/multiprocessing/popen_fork.py"
"""The file of the frames around a fork; seen on CPython 3.10 to 3.14."""
OTHER_STRATEGIES = {"STRICT_PACK": "PACK", "STRICT_SPREAD": "SPREAD"}


def find_infeasible(reduced: ReducedGraph) -> Iterator[Draft]:
    """One finding for each different request that no node can satisfy."""
    return _by_request(reduced, "infeasible")


def infeasible_summary(facts: FindingFacts, narrator: Narrator) -> str:
    """What cannot run, and which request is the reason."""
    first = facts.members[0]
    each = "it" if len(facts.members) == 1 else "each"
    because = f"{each} {reason(first)}"
    task = narrator.index.tasks.get(first.task_id or "")
    if task and (node := node_lost_by(narrator.index, task)):
        because += f"; {each} must run again, as {lost_with(narrator.index, node, task)}"
    return _sentence(facts, because)


def infeasible_advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """Change the request, or add a node."""
    first = facts.members[0]
    if change := _change_of_strategy(narrator, first) or _change_of_selector(narrator, first):
        return Advice(kind="fix", text=f"{change}, reduce what it asks for, or add a node that has it.")
    text = f"Reduce what {describe(first)} asks for, or add a node that has it: no node of the cluster can run it now."
    return Advice(kind="fix", text=text)


def _change_of_strategy(narrator: Narrator, vertex: Vertex) -> str | None:
    """Another strategy that a placement group might fit in."""
    if vertex.task_id is not None:
        return None
    group = narrator.index.placement_groups.get(vertex.placement_group_id or "")
    other = OTHER_STRATEGIES.get(group.strategy) if group and len(group.bundles) > 1 else None
    return f"For {describe(vertex)} use the strategy {other} instead of {group.strategy}" if group and other else None


def _change_of_selector(narrator: Narrator, vertex: Vertex) -> str | None:
    """The label selector of a task or actor, if it has one."""
    task = narrator.index.tasks.get(vertex.task_id or "")
    asked = asked_labels(narrator.index, task) if task else ()
    labels = listed(list(map(names.labels, asked)), " or ")
    return f"Change the label selector of {describe(vertex)} ({labels})" if asked else None


# Orphaned


def find_orphaned(reduced: ReducedGraph) -> Iterator[Draft]:
    """One finding for each lost producer, and for each core that waits for a lost rank."""
    yield from _by_request(reduced, "orphaned")
    for core in reduction.cores(reduced.waits, reduced.graph):
        if has_lost_rank(reduced, core):
            yield Draft(
                reduced,
                "orphaned",
                tuple(sorted(core, key=str)),
                confirmed=core <= reduced.certain,
                assumed=reduced.assumed(core),
                behind=reduced.behind(core),
            )


def orphaned_summary(facts: FindingFacts, narrator: Narrator) -> str:
    """What is lost, and why."""
    if ranks := collectives.headline(facts):
        return ranks
    never = facts.members[0].never
    return _sentence(facts, in_words(never) if never else "its producer has died")


def orphaned_steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """The callers of what is lost; of child processes, also the wait of their parent."""
    if collectives.headline(facts):
        yield from collectives.steps(facts, narrator)
        others = [vertex for vertex in facts.others() if not vertex.never]
        yield from narrator.similar_steps(others, "Also waiting: ")
        return
    yield from submissions(facts, narrator)
    parents = {vertex.worker_id for vertex in facts.members if vertex.child_pid is not None}
    own = (one for one in narrator.vertices.values() if one.worker_id in parents and _runs_user_code(narrator, one))
    waits = [vertex for vertex in own if _has_unknown_waker(narrator, vertex)]
    if parents:
        behind = facts.draft.blocked_behind
        yield from narrator.similar_steps([one for one in waits if one.key not in behind], "Their parent: ")


def _runs_user_code(narrator: Narrator, vertex: Vertex) -> bool:
    """Whether it runs a task or is the main thread of a driver."""
    worker = narrator.index.worker_of(vertex)
    is_main = worker is not None and vertex.os_thread_id == worker.pid
    return vertex.child_pid is None and (vertex.task_id is not None or is_main)


def _has_unknown_waker(narrator: Narrator, vertex: Vertex) -> bool:
    """Whether it waits for something outside of Ray, as a queue that a child process would fill."""
    return any(narrator.vertices[target].waker_of for target in targets_of(vertex))


def orphaned_advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """A new producer of the right kind: the lost one does not return."""
    return Advice(kind="fix", text=collectives.fix(facts) or _new_producer(narrator, facts.waits[0]))


def _new_producer(narrator: Narrator, first: Vertex) -> str:
    if first.never is not None and first.never.why == "lost lock":
        return (
            "Start child processes with the spawn or forkserver method, or before the parent starts threads: "
            f"{_forked(narrator, first)} inherits locks that are held, but no thread that would release them."
        )
    if first.never is not None and first.never.why == "queue end":
        return (
            "Start the engine and its workers again: nothing takes the place of a process that has ended in a message "
            "queue of vLLM."
        )
    if first.child_pid is not None:
        return (
            "Start child processes with the spawn method (multiprocessing.get_context('spawn'); of a DataLoader, "
            "multiprocessing_context='spawn'), or call Ray in the parent process and pass plain data to the child."
        )
    task = narrator.index.tasks.get(first.task_id or "")
    if task is None:
        return (
            "Create the value again in a live process, or handle the error in the caller: the value's owner has died."
        )
    actor = narrator.index.actors.get(task.actor_id or "")
    if _is_of_removed_group(narrator.index, task, actor):
        what = "create a new actor in it" if task.actor_id else "submit the task again with it"
        return f"Create another placement group and {what}: a removed placement group cannot be restored."
    if actor is not None:
        return (
            f"Create a new actor of class {actor.class_name} and repeat its calls there, or handle the error in the "
            "caller: this one is dead."
        )
    return f"Submit {describe(first)} again, or handle the error in the caller."


def _forked(narrator: Narrator, child: Vertex) -> str:
    """``the process forked at job.py:43``: a child of multiprocessing has the frames of its parent up to the fork."""
    frames = narrator.details(child).frames
    outside = user_frame(tuple(dropwhile(lambda frame: not frame.file.endswith(FORK), frames)))
    return f"the process forked at {base_name(outside.file)}:{outside.line}" if outside else "a forked process"


def _is_of_removed_group(index: SampleIndex, task: Task, actor: Actor | None) -> bool:
    ids = (task.placement_group_id, actor.placement_group_id if actor else None)
    return any(group.state == "REMOVED" for id_ in ids if (group := index.placement_groups.get(id_ or "")))


# Both


def _by_request(reduced: ReducedGraph, kind: FindingKind) -> Iterator[Draft]:
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
    selectors = tuple(tuple(sorted(one.items())) for one in asked_labels(reduced.index, task))
    called_actor = task.actor_id if task.kind == "ACTOR_TASK" else None
    resources = tuple(sorted(task.required_resources.items()))
    return task.name, called_actor, resources, selectors, task.placement_group_id


def _sentence(facts: FindingFacts, because: str) -> str:
    """What can never run or complete, and why."""
    first = facts.members[0]
    if first.child_pid is not None:
        return _sentence_of_children(facts, because)
    name = f"{describe(first)}{alike(len(facts.members))}"
    if first.never and first.never.why == "unsatisfied":
        return f"{name} cannot run on the present nodes: {because}"
    if first.never and first.never.why == "queue end":
        return f"{name} is gone: {because}"
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
    worker = index.worker_of(vertex)
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
