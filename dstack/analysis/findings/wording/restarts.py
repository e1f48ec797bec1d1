"""Actors that die and are restarted, and calls that are retried: how often, why, and the fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.wording.narration import MAX_COMPARED, Narrator
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe
from dstack.diagnosis import Step, Vertex
from dstack.model import Actor, actor_of_task
from dstack.observed_node import Task
from dstack.vertex_keys import UnknownKey
from dstack.words import SHOWN, times

REPEATED = 2
"""Restarts or retries that are a reason to find their cause."""


def restart_steps(draft: Draft, narrator: Narrator) -> Iterator[Step]:
    """How often the actors of a finding were restarted and its calls retried, with the last error."""
    for actor in _restarted(draft, narrator)[:SHOWN]:
        yield Step(text=_actor_in_words(actor))
    for vertex, task in _retried(draft, narrator)[:SHOWN]:
        yield Step(text=_task_in_words(narrator, vertex, task), vertex=vertex.key)


def is_repeated(draft: Draft, narrator: Narrator) -> bool:
    """Whether an actor was restarted or a call retried several times, or once and is not yet placed."""
    restarts = (actor.num_restarts for actor in _restarted(draft, narrator))
    retries = (task.attempt for _, task in _retried(draft, narrator))
    is_pending = all(isinstance(end, UnknownKey) and end.is_scheduler for end in draft.ends)
    return max((*restarts, *retries), default=0) >= (1 if is_pending else REPEATED)


def advice(draft: Draft, narrator: Narrator) -> str:
    """How to find the cause, and to limit the restarts or retries."""
    if actors := _restarted(draft, narrator):
        return (
            f"Find out why {names.actor(actors[0])} dies: read the end of its log (`ray logs actor --id "
            f"{actors[0].actor_id}`). Limit max_restarts and max_task_retries, so that the caller gets the error."
        )
    label = next((describe(vertex) for vertex, _ in _retried(draft, narrator)), "the call")
    return (
        f"Find out why {label} fails: read the end of its worker's log. Limit max_retries or max_task_retries, so that "
        "the caller gets the error."
    )


def _vertices(draft: Draft, narrator: Narrator) -> Iterable[Vertex]:
    return narrator.vertices_of(dict.fromkeys((*draft.members[:MAX_COMPARED], *draft.ends)))


def _restarted(draft: Draft, narrator: Narrator) -> list[Actor]:
    """The actors that are being restarted, or were restarted since the first attempt of a call of theirs."""
    found: dict[str, Actor] = {}
    for vertex in _vertices(draft, narrator):
        task = narrator.index.tasks.get(vertex.task_id or "")
        actor = narrator.index.actors.get(actor_of_task(vertex.task_id or "") or "") if vertex.task_id else None
        is_repeated_call = task is not None and task.kind == "ACTOR_TASK" and task.attempt > 0
        if actor and actor.num_restarts and (actor.state == "RESTARTING" or is_repeated_call):
            found[actor.actor_id] = actor
    return list(found.values())


def _retried(draft: Draft, narrator: Narrator) -> list[tuple[Vertex, Task]]:
    tasks = ((one, narrator.index.tasks.get(one.task_id or "")) for one in _vertices(draft, narrator))
    return [(one, task) for one, task in tasks if task and task.attempt and task.kind != "ACTOR_CREATION_TASK"]


def _actor_in_words(actor: Actor) -> str:
    limit = "no limit" if actor.max_restarts < 0 else f"at most {times(actor.max_restarts)}"
    error = f"; its last process ended with: {actor.last_error}" if actor.last_error else ""
    return f"{names.actor(actor)} has been restarted {times(actor.num_restarts)} ({limit}){error}"


def _task_in_words(narrator: Narrator, vertex: Vertex, task: Task) -> str:
    failed = (one for one in narrator.index.snapshot.failed_tasks if one.task_id == task.task_id)
    error = next((f"; its last error: {one.error_type} {one.error}".rstrip() for one in failed), "")
    first = "the first" if task.attempt == 1 else f"the first {task.attempt:,}"
    return f"{describe(vertex)} is at attempt {task.attempt + 1:,}: {first} failed{error}"
