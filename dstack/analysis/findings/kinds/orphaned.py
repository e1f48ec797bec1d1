"""Orphaned: waits for something whose producer died, and which nothing else will make."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.findings.facts.draft import Draft
from dstack.analysis.findings.facts.finding_facts import FindingFacts
from dstack.analysis.findings.facts.group_ranks import has_lost_rank
from dstack.analysis.findings.kinds.unsatisfiable import find_by_request, sentence, submissions
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording import collectives
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.descriptions import describe, in_words
from dstack.analysis.solve import reduction
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Advice, FindingKind, Step, Verdict, Vertex
from dstack.model.snapshot import Actor
from dstack.observed.node import Task

KIND: FindingKind = "orphaned"
VERDICT: Verdict = "hang"


def find(reduced: ReducedGraph) -> Iterator[Draft]:
    """One finding for each lost producer, and for each core that waits for a lost rank."""
    yield from find_by_request(reduced, KIND)
    for core in reduction.cores(reduced.waits, reduced.graph):
        if has_lost_rank(reduced, core):
            yield Draft(
                reduced,
                KIND,
                tuple(sorted(core, key=str)),
                confirmed=core <= reduced.certain,
                assumed=reduced.assumed(core),
                behind=reduced.behind(core),
            )


def summary(facts: FindingFacts, narrator: Narrator) -> str:
    """What is lost, and why."""
    if ranks := collectives.headline(facts):
        return ranks
    never = facts.members[0].never
    return sentence(facts, in_words(never) if never else "its producer has died")


def steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
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
    worker = narrator.index.workers.get(vertex.worker_id or "")
    is_main = worker is not None and vertex.os_thread_id == worker.pid
    return vertex.child_pid is None and (vertex.task_id is not None or is_main)


def _has_unknown_waker(narrator: Narrator, vertex: Vertex) -> bool:
    """Whether it waits for something outside of Ray, as a queue that a child process would fill."""
    return any(narrator.vertices[target].waker_of for target in targets_of(vertex))


def advice(facts: FindingFacts, narrator: Narrator) -> Advice:
    """A new producer of the right kind: the lost one does not return."""
    return Advice(kind="fix", text=collectives.fix(facts) or _new_producer(narrator, facts.waits[0]))


def _new_producer(narrator: Narrator, first: Vertex) -> str:
    if first.never is not None and first.never.why == "lost lock":
        return (
            "Start child processes with the spawn or forkserver method, or before the parent starts threads: a forked "
            "process inherits locks that are held, but no thread that would release them."
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


def _is_of_removed_group(index: SampleIndex, task: Task, actor: Actor | None) -> bool:
    ids = (task.placement_group_id, actor.placement_group_id if actor else None)
    return any(group.state == "REMOVED" for id_ in ids if (group := index.placement_groups.get(id_ or "")))
