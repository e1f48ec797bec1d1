"""What may cut waits short: code that can cancel or kill the waiter, and signals that its program handles.

Code can cancel a task if its process holds a ref of it, or of a task that it descends from; it can kill an actor if its
process holds a handle. That it does so is known from its source, or from the function of a ``threading.Timer``. Other
code that holds these may do it, too: then a deadlock is suspected only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.users import Users
from dstack.analysis.index.sample_index import SampleIndex
from dstack.diagnosis import Target, Vertex
from dstack.grouping import grouped
from dstack.model import actor_of_task, producer_task_id
from dstack.observed import Thread
from dstack.observed_calls import ProcessObject
from dstack.vertex_facts import subject
from dstack.vertex_keys import Key

ALARM = "SIGALRM"
"""Its handler is called when ``signal.alarm`` is due, on the main thread, and can take that out of any call."""
MAX_AHEAD = 10_000


def add_interruptions(graph: GraphBuilder, users: Users) -> None:
    """Add what may cut each wait short to it."""
    reach = _Reach(graph.index, graph.vertices)
    cut_short: dict[Key, list[Target]] = defaultdict(list)
    for vertex in list(graph.vertices.values()):
        if is_stopping(graph.index, vertex):
            for key in reach.of(vertex.worker_id or ""):
                cut_short[key].append(Target(vertex=vertex.key))
        elif signals := _signals(graph.index, vertex):
            handler = subject("signal", ", ".join(signals))
            cut_short[vertex.key].append(graph.unknown("signal", vertex.worker_id or "", subject=handler))
    for key, targets in cut_short.items():
        vertex = graph.vertices[key]
        others = [target for target in targets if target.vertex != key]
        if vertex.wait is not None and others:
            wait = replace(vertex.wait, cut_short_by=tuple(dict.fromkeys((*vertex.wait.cut_short_by, *others))))
            graph.add(replace(vertex, wait=wait))


def is_stopping(index: SampleIndex, vertex: Vertex) -> bool:
    """Whether an execution is about to cancel or kill something, by its source or its timer."""
    execution = index.execution_of(vertex) if vertex.kind == "execution" and vertex.worker_id else None
    if execution is None:
        return False
    is_timer = isinstance(execution, Thread) and execution.timer is not None and execution.timer.stops
    return is_timer or any(frame.stops for frame in index.frames_of(vertex.worker_id or "", execution))


def can_stop(index: SampleIndex, vertices: Mapping[Key, Vertex], keys: Iterable[Key]) -> Iterator[Key]:
    """The executions in processes that hold a ref or handle with which one of these could be cancelled or killed.

    Also those in the processes of these themselves.
    """
    wanted, reach = set(keys), _Reach(index, vertices)
    own = {vertices[key].worker_id for key in wanted}
    for vertex in vertices.values():
        if vertex.kind != "execution" or not vertex.worker_id or vertex.key in wanted:
            continue
        if vertex.worker_id in own or not wanted.isdisjoint(reach.of(vertex.worker_id)):
            yield vertex.key


def _signals(index: SampleIndex, vertex: Vertex) -> tuple[str, ...]:
    """The signals whose handlers may end a thread's wait: they may set its object, or leave the main thread's call."""
    process = index.process(vertex.worker_id or "")
    if vertex.os_thread_id is None or vertex.child_pid is not None or process is None or vertex.wait is None:
        return ()
    call = index.call_of_vertex(vertex)
    if call is not None and isinstance(call.need, ProcessObject):
        return process.handled_signals
    is_main = vertex.os_thread_id == process.pid
    return (ALARM,) if is_main and ALARM in process.handled_signals else ()


class _Reach:
    """The waits of tasks and actors that code of a process can end by ``ray.cancel`` and ``ray.kill``."""

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex]) -> None:
        self._index = index
        self._by_task: dict[str, list[Key]] = defaultdict(list)
        self._by_actor: dict[str, list[Key]] = defaultdict(list)
        self._known: dict[str, set[Key]] = {}
        tasks = (task for task in index.tasks.values() if task.parent_task_id)
        self._children = grouped((task.parent_task_id, task.task_id) for task in tasks)
        for vertex in vertices.values():
            worker = index.workers.get(vertex.worker_id or "") if vertex.kind == "execution" else None
            if vertex.wait is not None and vertex.task_id:
                self._by_task[vertex.task_id].append(vertex.key)
                self._by_actor[actor_of_task(vertex.task_id) or ""].append(vertex.key)
            elif vertex.wait is not None and worker is not None:
                self._by_actor[worker.actor_id or ""].append(vertex.key)
        self._by_actor.pop("", None)

    def of(self, worker_id: str) -> set[Key]:
        """The waits that code of this process can end."""
        if worker_id not in self._known:
            actors = self._index.refs.actors_held_by.get(worker_id, ())
            found = {key for actor in actors for key in self._by_actor.get(actor, ())}
            found.update(key for task in self._tasks(worker_id) for key in self._by_task.get(task, ()))
            self._known[worker_id] = found
        return self._known[worker_id]

    def _tasks(self, worker_id: str) -> set[str]:
        """The tasks whose refs a process holds, and those that descend from them: a task is cancelled with these."""
        ahead = [producer_task_id(ref.ref) for ref in self._index.refs.held_by.get(worker_id, ())]
        found: set[str] = set()
        while ahead and len(found) < MAX_AHEAD:
            task = ahead.pop()
            if task not in found:
                found.add(task)
                ahead += self._children.get(task, ())
        return found
