"""Requests to Ray Serve deployments: the dependencies of queued requests.

A replica has at most ``max_ongoing_requests`` ongoing requests. A request that finds all replicas full stays in the
router of its caller until one of the ongoing requests ends, or another replica starts. Seen on Ray 2.60.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, waits_for
from dstack.analysis.index.sample_index import SampleIndex, is_user_code
from dstack.libraries.serve import REPLICA_NAME, REQUESTS
from dstack.model.diagnosis import SlotLimit, Target, Wait
from dstack.model.snapshot import Actor
from dstack.model.vertex_facts import subject
from dstack.model.vertex_keys import AnyKey
from dstack.observed.calls import QueuedRequest, ServeRequest
from dstack.observed.processes import Coroutine

NAME = re.compile(REPLICA_NAME)
UNPLACED = ("DEPENDENCIES_UNREADY", "PENDING_CREATION")
"""States of a replica without a node. A further replica would need the same resources, so it would wait too."""
HANDLES = re.compile(REQUESTS)


@dataclass(frozen=True, slots=True)
class _Replica:
    replica_id: str
    actor: Actor


def wait_for_slot(graph: GraphBuilder, queued: QueuedRequest) -> Wait:
    """The wait of a queued request, for any ongoing request of its deployment or for another replica."""
    request = queued.request
    limits = tuple(sorted(queued.replicas.items()))
    key = AnyKey("Serve slot", (request.app, request.deployment, limits, queued.most_replicas, str(queued.in_replica)))
    known = graph.vertices.get(key)
    return graph.shared(key, known.wait if known and known.wait else _wait_for_any(graph, queued))


def _wait_for_any(graph: GraphBuilder, queued: QueuedRequest) -> Wait:
    replicas = list(_replicas(graph.index, queued.request))
    known = [one for one in replicas if one.replica_id in queued.replicas]
    targets: list[Target] = []
    for one in known:
        targets += _slots(graph, one, queued.replicas[one.replica_id])
    if not queued.in_replica:
        targets += _further(graph, queued, [one for one in replicas if one not in known])
    if not targets:
        app, deployment = queued.request.app, queued.request.deployment
        first = subject("first replica", deployment)
        targets = [graph.unknown("start of actor", app, deployment, subject=first)]
    several = tuple(dict.fromkeys(targets))
    return replace(waits_for("Serve slot", *several), limit=_limit(queued))


def _replicas(index: SampleIndex, request: ServeRequest) -> Iterator[_Replica]:
    for actor in index.serve_replicas.get(f"ServeReplica:{request.app}:{request.deployment}", ()):
        if name := NAME.fullmatch(actor.name):
            yield _Replica(name["replica"], actor)


def _slots(graph: GraphBuilder, replica: _Replica, limit: int) -> Iterator[Target]:
    """The ongoing requests of a replica, and a free slot if they are fewer than its limit."""
    index, actor = graph.index, replica.actor
    worker = index.worker_samples.get(actor.worker_id or "")
    running = worker.running_task_ids if worker else None
    if running is None:
        unread = subject("replica", replica.replica_id)
        yield graph.unknown("actor", actor.actor_id, "requests", subject=unread, unobserved=True)
        return
    ongoing = [task_id for task_id in running if task_id not in index.tasks or _is_request(index, task_id)]
    yield from (graph.task(task_id) for task_id in ongoing)
    if sum(_is_request(index, task_id) for task_id in ongoing) < limit:
        free = subject("free slot of replica", replica.replica_id)
        yield graph.unknown("slot", actor.actor_id, "requests", subject=free)


def _is_request(index: SampleIndex, task_id: str) -> bool:
    task = index.tasks.get(task_id)
    return task_id in index.request_of_task or bool(task and HANDLES.fullmatch(task.method))


def _further(graph: GraphBuilder, queued: QueuedRequest, starting: Sequence[_Replica]) -> Iterator[Target]:
    """The starts of replicas that are unknown to the router, and replicas that may be added."""
    index, deployment = graph.index, queued.request.deployment
    for one in starting:
        creation = index.creations.get(one.actor.actor_id)
        worker = index.worker_samples.get(one.actor.worker_id or "")
        running = (worker.running_task_ids if worker else None) or ()
        own = [task_id for task_id in running if not _is_request(index, task_id)]
        if creation is not None:
            yield graph.task(creation.task_id)
        elif own:
            yield from (graph.task(task_id) for task_id in own)
        else:
            start = subject("start of replica", one.replica_id, deployment)
            yield graph.unknown("start of actor", one.actor.actor_id, "replica", subject=start)
    is_full = queued.most_replicas is not None and len(starting) + len(queued.replicas) >= queued.most_replicas
    if not is_full and not any(one.actor.state in UNPLACED for one in starting):
        new = subject("new replica", deployment)
        yield graph.unknown("start of actor", queued.request.app, deployment, subject=new)


def _limit(queued: QueuedRequest) -> SlotLimit | None:
    """The limit that is reached, None without replicas."""
    if not queued.replicas:
        return None
    return SlotLimit(deployment=queued.request.deployment, most=tuple(sorted(set(queued.replicas.values()))))


def as_passed_on(index: SampleIndex, worker_id: str, coroutine: Coroutine, wait: Wait) -> Wait:
    """The wait of a coroutine; its kind says if it only passes a request on, like the main loop of a replica."""
    is_own = coroutine.request is not None and not is_user_code(index, worker_id, coroutine)
    return replace(wait, kind="Serve request") if is_own and wait.kind == "await" else wait
