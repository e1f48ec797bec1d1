"""The wait-for graph of one sample: its vertices, and the dependencies of each wait."""

from __future__ import annotations

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.executions import add_executions
from dstack.analysis.graph.in_process_links import add_links
from dstack.analysis.graph.pending.given_up import release_given_up
from dstack.analysis.graph.pending.pending_tasks import Pending
from dstack.analysis.graph.process_groups.waits import add_group_waits
from dstack.analysis.graph.users import Users
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.ray_libraries import without_idle_machinery
from dstack.diagnosis import Vertex
from dstack.libraries.compiled_graphs.waits import add_channel_waits
from dstack.vertex_keys import Key


def wait_for_graph(index: SampleIndex) -> dict[Key, Vertex]:
    """All vertices of one sample by key, waiting or not."""
    graph = GraphBuilder(index)
    for worker in index.sample.workers:
        add_executions(graph, worker)
    users = Users(graph)
    pending = Pending(graph, users)
    for task in index.tasks.values():
        if task.task_id not in index.worker_of_task:
            pending.add_task(task)
    for group in index.sample.placement_groups:
        pending.add_group(group)
    add_group_waits(graph, users)
    add_channel_waits(graph, users)
    add_links(graph, users)
    release_given_up(graph)
    return without_idle_machinery(index, graph.vertices)
