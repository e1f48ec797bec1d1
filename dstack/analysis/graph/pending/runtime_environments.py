"""Tasks and actors that cannot start before their runtime environment is installed on a node."""

from __future__ import annotations

from collections.abc import Iterator

from dstack.analysis.graph.builder import GraphBuilder, waits_for
from dstack.analysis.index.sample_index import SampleIndex
from dstack.diagnosis import Target, Wait
from dstack.observed_node import EnvironmentSetup, Task
from dstack.vertex_facts import reason, subject
from dstack.vertex_keys import Unknown

UNINSTALLED = ("env_vars", "config", "worker_process_setup_hook", "nsight", "py_executable")
"""Parts of a runtime environment that need no installation; other names are those of plugins."""
UNEXPLAINED: tuple[Unknown, ...] = ("scheduler", "holder", "executor")
"""The unknown targets that a start may wait for while Ray installs its environment."""


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
    if wait is None or not setups or not may_wait_for_setup(task):
        return wait
    if not any(group.has_unknown(kind) for group in wait.groups for kind in UNEXPLAINED):
        return wait
    targets = tuple(_target(graph, setup) for setup in setups)
    return waits_for("runtime environment", *targets, inferred=reason("any setup"))


def _target(graph: GraphBuilder, setup: EnvironmentSetup) -> Target:
    index = graph.index
    node = index.nodes.get(setup.node_id)
    ahead_s = (node.clock_ahead_s if node else None) or 0.0
    age_s = max(0.0, index.snapshot.taken_at + index.snapshot.total_s - (setup.started_at - ahead_s))
    return graph.unknown("setup", setup.node_id, setup.pid, subject=subject("setup", setup, node, age_s))
