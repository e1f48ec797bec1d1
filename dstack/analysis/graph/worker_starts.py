"""Tasks and actors that wait for a worker process: for its runtime environment to be installed, and for its start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from dstack.analysis.graph.builder import GraphBuilder, waits_for
from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.diagnosis import CallName, Target, Wait
from dstack.model.snapshot import Actor, Worker
from dstack.model.vertex_facts import reason, subject
from dstack.model.vertex_keys import ThreadKey, Unknown
from dstack.observed.node import EnvironmentSetup, Task

UNINSTALLED = ("env_vars", "config", "worker_process_setup_hook", "nsight", "py_executable")
"""Parts of a runtime environment that need no installation; other names are those of plugins."""
ANOTHER_WORKER = CallName(site="executor", text="the start of a worker process")
UNEXPLAINED: tuple[Unknown, ...] = ("scheduler", "holder", "executor")
"""The unknown targets that a task may wait for while Ray installs its environment, or starts a worker for it."""


def may_wait_for_setup(task: Task) -> bool:
    """Whether a task or actor that has no worker yet asks for an environment that must be installed."""
    is_pending = task.state == "PENDING_NODE_ASSIGNMENT" and task.kind != "ACTOR_TASK"
    return is_pending and any(part not in UNINSTALLED for part in task.environment)


def pending_setups(index: SampleIndex) -> Iterator[Task]:
    """The tasks and actors of a sample that may wait for the installation of an environment."""
    return (task for task in index.tasks.values() if may_wait_for_setup(task))


def wait_for_setup(graph: GraphBuilder, task: Task, wait: Wait | None) -> Wait | None:
    """The wait for the running installations, in place of one for a scheduler that could place the task.

    Ray does not say to which task an installation belongs.
    """
    setups = graph.index.snapshot.environment_setups
    if wait is None or not setups or not may_wait_for_setup(task) or not _is_unexplained(wait):
        return wait
    targets = tuple(_target(graph, setup) for setup in setups)
    return waits_for("runtime environment", *targets, inferred=reason("any setup"))


def wait_for_worker(
    graph: GraphBuilder, task: Task, wait: Wait | None, node_id: str | None = None, actor: Actor | None = None
) -> Wait | None:
    """The wait for a worker that is starting, in place of one for a scheduler or worker, or of none.

    Of an actor Ray may know the worker. Else it is any of the task's job on the node, or on any node. Where these wait,
    another worker may be the one, so its waker is unknown, too.
    """
    own = graph.index.workers.get(actor.worker_id or "") if actor else None
    if own is not None and own in graph.index.starting_workers.get(own.node_id, ()):
        return waits_for("executor", _start_of(graph, own))
    starts = starts_of_workers(graph, task.job_id, node_id)
    is_replaced = wait is None or _is_unexplained(wait) or set(wait.targets) <= set(starts)
    if not starts or not is_replaced:
        return wait
    others = () if wait is None or all_run(graph, starts) else (graph.unknown_waker(ANOTHER_WORKER, task.job_id),)
    inferred = reason("any starting worker") if len(starts) > 1 else None
    return waits_for("executor", *starts, *others, inferred=inferred)


def starts_of_workers(graph: GraphBuilder, job_id: str | None = None, node_id: str | None = None) -> tuple[Target, ...]:
    """The workers that are starting, on a node or any, and that may run tasks of a job, or of any job."""
    known = graph.index.starting_workers
    workers = chain.from_iterable(known.values() if node_id is None else [known.get(node_id, ())])
    return tuple(_start_of(graph, one) for one in workers if job_id is None or one.job_id in (None, job_id))


def all_run(graph: GraphBuilder, starts: Iterable[Target]) -> bool:
    """Whether none of the starting workers waits for something."""
    return all(graph.vertices[start.vertex].wait is None for start in starts)


def _start_of(graph: GraphBuilder, worker: Worker) -> Target:
    """The main thread of a worker that is starting."""
    key = ThreadKey(worker.worker_id, worker.pid)
    if key in graph.vertices:
        return Target(vertex=key)
    starting = subjects.of_start(graph.index, worker) or subject("unread process")
    return graph.unknown("worker", worker.worker_id, "start", subject=starting, unobserved=True)


def _is_unexplained(wait: Wait) -> bool:
    return any(group.has_unknown(kind) for group in wait.groups for kind in UNEXPLAINED)


def _target(graph: GraphBuilder, setup: EnvironmentSetup) -> Target:
    index = graph.index
    node = index.nodes.get(setup.node_id)
    ahead_s = (node.clock_ahead_s if node else None) or 0.0
    age_s = max(0.0, index.snapshot.taken_at + index.snapshot.total_s - (setup.started_at - ahead_s))
    return graph.unknown("setup", setup.node_id, setup.pid, subject=subject("setup", setup, node, age_s))
