"""Actors that die and are restarted, and calls that are made again: how often, why, and what helps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dstack.analysis.findings.wording.narration import MAX_COMPARED, Narrator
from dstack.analysis.naming import names
from dstack.diagnosis import Finding, Step, Vertex
from dstack.model import Actor, Task, actor_of_task
from dstack.vertex_keys import UnknownKey
from dstack.words import times

SHOWN = 3
REPEATED = 2
"""So many restarts or retries in a row are a reason to look for their cause."""


def restart_steps(finding: Finding, narrator: Narrator) -> Iterator[Step]:
    """How often the actors of a finding were restarted and its calls made again, with the last error."""
    for actor in _restarted(finding, narrator)[:SHOWN]:
        yield Step(text=_of_actor(actor))
    for vertex, task in _retried(finding, narrator)[:SHOWN]:
        yield Step(text=_of_task(narrator, vertex, task), vertex=vertex.key)


def is_repeated(finding: Finding, narrator: Narrator) -> bool:
    """Whether an actor was restarted, or a call made again, several times; or once, and all wait for the next time."""
    restarts = (actor.num_restarts for actor in _restarted(finding, narrator))
    retries = (task.attempt for _, task in _retried(finding, narrator))
    ends = (blocker.vertex for blocker in finding.final_blockers)
    is_pending = all(isinstance(end, UnknownKey) and end.is_scheduler for end in ends)
    return max((*restarts, *retries), default=0) >= (1 if is_pending else REPEATED)


def advice(finding: Finding, narrator: Narrator) -> str:
    """How to find the cause, and to bound the restarts or attempts."""
    if actors := _restarted(finding, narrator):
        return (
            f"Find out why {names.actor(actors[0])} dies: read the end of its log (`ray logs actor --id "
            f"{actors[0].actor_id}`). Limit max_restarts and max_task_retries, so that the caller gets the error."
        )
    label = next((vertex.label for vertex, _ in _retried(finding, narrator)), "the call")
    return (
        f"Find out why {label} fails: read the end of its worker's log. Limit max_retries or max_task_retries, so that "
        "the caller gets the error."
    )


def _vertices(finding: Finding, narrator: Narrator) -> Iterable[Vertex]:
    ends = (blocker.vertex for blocker in finding.final_blockers)
    return narrator.vertices_of(dict.fromkeys((*finding.members[:MAX_COMPARED], *ends)))


def _restarted(finding: Finding, narrator: Narrator) -> list[Actor]:
    """The actors that are being restarted, or have been since a call of theirs was made first."""
    found: dict[str, Actor] = {}
    for vertex in _vertices(finding, narrator):
        task = narrator.index.tasks.get(vertex.task_id or "")
        actor = narrator.index.actors.get(actor_of_task(vertex.task_id or "") or "") if vertex.task_id else None
        is_repeated_call = task is not None and task.kind == "ACTOR_TASK" and task.attempt > 0
        if actor and actor.num_restarts and (actor.state == "RESTARTING" or is_repeated_call):
            found[actor.actor_id] = actor
    return list(found.values())


def _retried(finding: Finding, narrator: Narrator) -> list[tuple[Vertex, Task]]:
    tasks = ((one, narrator.index.tasks.get(one.task_id or "")) for one in _vertices(finding, narrator))
    return [(one, task) for one, task in tasks if task and task.attempt and task.kind != "ACTOR_CREATION_TASK"]


def _of_actor(actor: Actor) -> str:
    limit = "no limit" if actor.max_restarts < 0 else f"at most {times(actor.max_restarts)}"
    error = f"; its last process ended with: {actor.last_error}" if actor.last_error else ""
    return f"{names.actor(actor)} has been restarted {times(actor.num_restarts)} ({limit}){error}"


def _of_task(narrator: Narrator, vertex: Vertex, task: Task) -> str:
    failed = (one for one in narrator.index.snapshot.failed_tasks if one.task_id == task.task_id)
    error = next((f"; its last error: {one.error_type} {one.error}".rstrip() for one in failed), "")
    return f"{vertex.label} is at attempt {task.attempt + 1:,}: {_before(task.attempt)} failed{error}"


def _before(attempts: int) -> str:
    return "the first" if attempts == 1 else f"the first {attempts:,}"
