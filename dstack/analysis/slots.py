"""Actor calls that were sent and do not run: the slots of their actor are taken, or they have not arrived yet.

A sync actor has one slot, on its main thread. Threaded and async actors have several, in concurrency groups; how many,
Ray does not tell. What it does tell is that a call has arrived with all its arguments: then its group is full, and it
waits for one of the calls that run in it. Which group that is, its method's declaration says, unless the caller has
asked for another one: that it has not is assumed.
"""

from __future__ import annotations

from msgspec.structs import replace

from dstack.analysis import names, placing
from dstack.analysis.graph import Graph
from dstack.diagnosis import Target, Wait
from dstack.model import Actor, Task

KIND = "actor slot"


def wait_for_slot(graph: Graph, task: Task) -> Wait | None:
    """What a call waits for that was sent to its actor, and that nobody says to run."""
    observed = graph.observed
    actor = observed.actors.get(task.actor_id or "")
    if actor is None or not actor.worker_id:
        return graph.waits_for_unobserved("executor", "worker it was sent to, which does not say that it runs it")
    worker = observed.seen.get(actor.worker_id)
    if worker is None or worker.running_task_ids is None:
        return graph.waits_for_unobserved(KIND, f"{names.actor(actor)}, which was not observed")
    if not worker.running_task_ids:
        return None
    if placing.has_one_slot(observed, actor.worker_id):
        return _wait_for_running(graph, actor, worker.running_task_ids)
    if not observed.has_arrived(task):
        what = f"free slot of {names.actor(actor)}, or its arguments on their way there"
        return graph.waits_for_unobserved(KIND, what)
    wait = _wait_for_running(graph, actor, worker.running_task_ids, observed.on_their_way(task))
    return _narrowed(graph, actor, task, wait, worker.running_task_ids)


def _wait_for_running(graph: Graph, actor: Actor, running: tuple[str, ...], before_it: tuple[str, ...] = ()) -> Wait:
    """One of the calls that run there, or of those by the same caller that may have to run before it."""
    keys = (placing.key_of_task(graph.observed, task_id) for task_id in (*running, *before_it))
    return graph.one_of(
        KIND,
        list(dict.fromkeys(keys)),
        lambda key: Target(vertex=key),
        f"any of the {len(running)} calls that run there may end first",
        "/".join((actor.actor_id, *before_it[:1])),
    )


def _narrowed(graph: Graph, actor: Actor, task: Task, wait: Wait, running: tuple[str, ...]) -> Wait:
    """The wait for those alone that run in the call's own concurrency group, if its methods tell and some do."""
    process = graph.observed.process(actor.worker_id or "")
    group = _group_of(graph, task.task_id) if process and process.concurrency_groups else None
    if group is None or graph.observed.on_their_way(task):
        return wait
    mates = tuple(task_id for task_id in running if _group_of(graph, task_id) in (group, None))
    if not mates or len(mates) == len(running):
        return wait
    narrow = graph.one_of(
        KIND,
        mates,
        lambda task_id: Target(vertex=placing.key_of_task(graph.observed, task_id)),
        f"any of the {len(mates)} calls that run in its concurrency group may end first",
        f"{actor.actor_id}/{group}",
    )
    name = f"concurrency group {group}" if group else "default concurrency group"
    return replace(narrow, assumed=f"{task.name} is in the {name} of its actor, as declared", if_not=wait.groups)


def _group_of(graph: Graph, task_id: str) -> str | None:
    """The concurrency group of a call's method, empty for the default one; None where nobody knows.

    A call may have been given a name of its own, so only names of the form ``Class.method`` are taken for methods.
    """
    task = graph.observed.tasks.get(task_id)
    actor = graph.observed.actors.get((task and task.actor_id) or "")
    process = graph.observed.process((actor and actor.worker_id) or "")
    if task is None or actor is None or process is None or process.concurrency_groups is None:
        return None
    class_name, _, method = task.name.rpartition(".")
    return process.concurrency_groups.get(method, "") if class_name == actor.class_name else None
