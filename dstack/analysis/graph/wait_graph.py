"""The wait-for graph of one sample: its vertices, and the dependencies of each wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.executions import add_executions
from dstack.analysis.graph.group_waits import add_group_waits
from dstack.analysis.graph.interruptions import add_interruptions
from dstack.analysis.graph.object_waits import add_kernel_waits, add_links
from dstack.analysis.graph.pending_tasks import Pending, release_given_up
from dstack.analysis.graph.polls import add_polls
from dstack.analysis.graph.users import Users
from dstack.analysis.index.ray_libraries import without_idle_machinery
from dstack.analysis.index.sample_index import SampleIndex
from dstack.libraries.compiled_graphs.waits import add_channel_waits
from dstack.libraries.vllm.waits import add_queue_waits
from dstack.model.diagnosis import NODES_SETTLE_S, Vertex
from dstack.model.vertex_keys import Key

Part = Literal[
    "executions", "pending", "ranks", "channels", "queues", "kernel", "objects", "polls", "interruptions", "given up"
]


@dataclass(frozen=True, slots=True)
class BuildStep:
    """A step of the construction: the part of the graph that it adds, and the parts that it needs to be there."""

    adds: Part
    needs: tuple[Part, ...]
    run: Callable[[GraphBuilder, Users], None]


def wait_for_graph(index: SampleIndex, nodes_settle_s: float = NODES_SETTLE_S) -> dict[Key, Vertex]:
    """All vertices of one sample by key, waiting or not; ``nodes_settle_s`` is that of :class:`Membership`."""
    graph = GraphBuilder(index, nodes_settle_s)
    users = Users(graph)
    for step in STEPS:
        step.run(graph, users)
    return without_idle_machinery(index, graph.vertices)


def _add_executions(graph: GraphBuilder, users: Users) -> None:
    for worker_id in graph.index.worker_samples:
        add_executions(graph, worker_id)


def _add_pending(graph: GraphBuilder, users: Users) -> None:
    pending = Pending(graph, users)
    for task in graph.index.tasks.values():
        if task.task_id not in graph.index.worker_of_task:
            pending.add_task(task)
    for group in graph.index.sample.placement_groups:
        pending.add_group(group)


STEPS = (
    BuildStep("executions", (), _add_executions),
    BuildStep("pending", ("executions",), _add_pending),
    BuildStep("ranks", ("executions", "pending"), add_group_waits),
    BuildStep("channels", ("executions", "pending"), add_channel_waits),
    BuildStep("queues", ("executions", "pending"), add_queue_waits),
    BuildStep("kernel", ("executions", "pending"), add_kernel_waits),
    BuildStep("objects", ("executions", "pending", "ranks", "channels", "queues", "kernel"), add_links),
    BuildStep("polls", ("executions", "pending", "objects"), add_polls),
    BuildStep("interruptions", ("executions", "pending", "polls"), add_interruptions),
    BuildStep("given up", ("executions", "pending", "objects", "polls"), lambda graph, users: release_given_up(graph)),
)
"""In order. Threads and coroutines with their calls; calls, actors and placement groups that do not run. Then waits
are completed whose dependencies are found among all of these: members of process groups, ends of channels and queues,
processes at the other ends of pipes and sockets, and, for what still waits for something unknown, code that can reach
the object. Then loops that only poll wait for what they poll, which depends on the waits of all others. At last, calls
are released that nothing waits for any more."""
