"""Orphaned: waits for something that died and that nobody will make."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.findings.never_given import find_alike, sentence, submissions
from dstack.analysis.findings.reduced_graph import Situation
from dstack.analysis.findings.wording import collectives
from dstack.analysis.findings.wording.narration import Teller
from dstack.analysis.index.sample_index import Observed
from dstack.analysis.solve import reduction
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Finding, FindingKind, Step, Verdict, Vertex
from dstack.model import Actor, Task

KIND: FindingKind = "orphaned"
VERDICT: Verdict = "hang"


def find(situation: Situation) -> Iterator[Finding]:
    """One for each thing that is gone, and for those that wait only for each other and for a lost rank."""
    yield from find_alike(situation, KIND)
    for core in reduction.cores(situation.waits, situation.graph):
        if collectives.has_lost_rank(situation, core):
            is_certain = core <= situation.certain
            yield Finding(
                kind=KIND,
                confirmed=is_certain,
                assumed=() if is_certain else situation.assumed(core),
                members=tuple(sorted(core, key=str)),
                blocked_behind=situation.behind(core),
            )


def summary(finding: Finding, teller: Teller) -> str:
    """What is gone, and why."""
    if ranks := collectives.headline(finding, teller):
        return ranks
    return sentence(finding, teller, teller.vertices[finding.members[0]].never or "its producer has died")


def steps(finding: Finding, teller: Teller) -> Iterator[Step]:
    """What asked for it; of child processes, also what their parent waits in."""
    if collectives.headline(finding, teller):
        yield from collectives.steps(finding, teller)
        described = {
            *collectives.described(finding, teller),
            *(key for key in finding.members if teller.vertices[key].never),
        }
        yield from teller.alike([key for key in finding.members if key not in described], "Also waiting: ")
        return
    yield from submissions(finding, teller)
    parents = {teller.vertices[key].worker_id for key in finding.members if teller.vertices[key].child_pid is not None}
    own = (one for one in teller.vertices.values() if one.worker_id in parents and _runs_user_code(teller, one))
    waits = [vertex.key for vertex in own if _is_for_other(teller, vertex)]
    if parents:
        yield from teller.alike([key for key in waits if key not in finding.blocked_behind], "Their parent: ")


def _runs_user_code(teller: Teller, vertex: Vertex) -> bool:
    """Whether it runs a task or is the main thread of a driver."""
    worker = teller.observed.workers.get(vertex.worker_id or "")
    is_main = worker is not None and vertex.os_thread_id == worker.pid
    return vertex.child_pid is None and (vertex.task_id is not None or is_main)


def _is_for_other(teller: Teller, vertex: Vertex) -> bool:
    """Whether it waits for something outside of Ray, as a queue that a child process would fill."""
    return any(teller.vertices[target].other_side_of for target in targets_of(vertex))


def advice(finding: Finding, teller: Teller) -> str:
    """A new producer of the right kind: what is gone never comes back."""
    if fix := collectives.advice(finding, teller):
        return fix
    first = teller.vertices[finding.members[0]]
    if first.child_pid is not None:
        return (
            "Start child processes with the spawn method (multiprocessing.get_context('spawn'); of a DataLoader, "
            "multiprocessing_context='spawn'), or call Ray in the parent process and pass plain data to the child."
        )
    task = teller.observed.tasks.get(first.task_id or "")
    if task is None:
        return (
            "Create the value again in a live process, or handle the error in the caller: the value's owner has died."
        )
    actor = teller.observed.actors.get(task.actor_id or "")
    if _is_of_removed_group(teller.observed, task, actor):
        what = "create a new actor in it" if task.actor_id else "submit the task again with it"
        return f"Create another placement group and {what}: a removed placement group cannot be restored."
    if actor is not None:
        return (
            f"Create a new actor of class {actor.class_name} and repeat its calls there, or handle the error in the "
            "caller: this one is dead."
        )
    return f"Submit {first.label} again, or handle the error in the caller."


def _is_of_removed_group(observed: Observed, task: Task, actor: Actor | None) -> bool:
    ids = (task.placement_group_id, actor.placement_group_id if actor else None)
    return any(group.state == "REMOVED" for id_ in ids if (group := observed.groups.get(id_ or "")))
