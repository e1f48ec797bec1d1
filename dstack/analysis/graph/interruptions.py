"""What may cut waits short: code that can cancel or kill the waiter, and signals that its program handles.

Code can cancel a task if its process holds a ref of it, or of a task that it descends from; it can kill an actor if its
process holds a handle. That it does so is known from its source, or from the function of a ``threading.Timer``. Other
code that holds these may do it, too: then a deadlock is suspected only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder
from dstack.analysis.graph.users import Users
from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import SampleIndex, key_of_task
from dstack.model.diagnosis import Group, Target, Vertex, Wait
from dstack.model.snapshot import actor_of_task, producer_task_id
from dstack.model.vertex_facts import assumption, subject
from dstack.observed.calls import ProcessObject, Timer
from dstack.observed.node import Ref
from dstack.observed.processes import StopCall, Thread
from dstack.words import duration, grouped

ALARM = "SIGALRM"
"""Its handler is called when ``signal.alarm`` is due, on the main thread, and can take that out of any call."""
MAX_DESCENDANTS = 10_000


def add_interruptions(graph: GraphBuilder, users: Users) -> None:
    """Add what may cut each wait short to it."""
    stoppers = _Stoppers(graph, users)
    for vertex in list(graph.vertices.values()):
        if vertex.wait is None:
            continue
        wait = _failing(graph, vertex.wait) if vertex.wait.fails_fast else vertex.wait
        others = [target for target in stoppers.of(vertex) if target.vertex != vertex.key]
        if signals := _signals(graph.index, vertex):
            handler = subject("signal", ", ".join(signals))
            others.append(graph.unknown("signal", vertex.worker_id or "", subject=handler))
        if others:
            wait = replace(wait, cut_short_by=tuple(dict.fromkeys((*wait.cut_short_by, *others))))
        if wait is not vertex.wait:
            graph.add(replace(vertex, wait=wait))


class _Stoppers:
    """The executions that are about to cancel or kill something, by the tasks and actors that these can reach."""

    def __init__(self, graph: GraphBuilder, users: Users) -> None:
        self._users = users
        self._of_task: dict[str, list[Target]] = defaultdict(list)
        self._of_actor: dict[str, list[Target]] = defaultdict(list)
        self._of_process: dict[str, list[Target]] = defaultdict(list)
        index = graph.index
        found = [*_stopping(graph), *_timers_of_loops(graph)]
        by_worker = grouped((*((worker_id, target) for worker_id, target, _ in found), *_starting_actors(graph)))
        for worker_id, target, call in found:
            if call.ends_process:
                self._of_process[worker_id].append(target)
        tasks = index.tasks.values() if by_worker else ()
        subtasks = grouped((task.parent_task_id, task.task_id) for task in tasks if task.parent_task_id)
        for worker_id, targets in by_worker.items():
            for task in _with_descendants(index.refs.held_by.get(worker_id, ()), subtasks):
                self._of_task[task] += targets
            for actor in set(index.refs.actors_held_by.get(worker_id, ())):
                self._of_actor[actor] += targets

    def of(self, vertex: Vertex) -> Iterator[Target]:
        """Those that can end the wait of a vertex; a helper represents many."""
        yield from self._of_process.get(vertex.worker_id or "", ())
        if vertex.task_id in self._of_task:
            yield from self._few(vertex.task_id or "", self._of_task[vertex.task_id or ""])
        actor = actor_of_task(vertex.task_id) if vertex.task_id else None
        if actor in self._of_actor:
            yield from self._few(actor or "", self._of_actor[actor or ""])

    def _few(self, owner: str, targets: Sequence[Target]) -> Sequence[Target]:
        cancellers = subject("any of", len(targets))
        return self._users.alternatives.few("cancellers", owner, cancellers, lambda: targets)


def _stopping(graph: GraphBuilder) -> Iterator[tuple[str, Target, StopCall | Timer]]:
    """The executions that are about to cancel or kill something, by their source or timer, with their workers."""
    for vertex in graph.vertices.values():
        execution = graph.index.execution_of(vertex) if vertex.kind == "execution" and vertex.worker_id else None
        if execution is None:
            continue
        calls: list[StopCall | Timer] = [one.stops for one in graph.index.frames_of_vertex(vertex) if one.stops]
        if isinstance(execution, Thread) and execution.timer is not None and execution.timer.stops:
            calls.append(execution.timer)
        if calls:
            call = next((one for one in calls if one.ends_process), calls[0])
            yield vertex.worker_id or "", Target(vertex=vertex.key), call


def _timers_of_loops(graph: GraphBuilder) -> Iterator[tuple[str, Target, StopCall | Timer]]:
    """The timers of event loops that stop something, by their workers."""
    for worker_id in graph.index.workers:
        process = graph.index.process(worker_id)
        for number, timer in enumerate(process.timers if process else ()):
            when = f" in {duration(timer.left_s)}" if timer.left_s is not None else ""
            what = subject("timer", subjects.process(graph.index, worker_id), timer.name or "a function", when)
            yield worker_id, graph.unknown("timer", worker_id, number, subject=what, worker_id=worker_id), timer


def _starting_actors(graph: GraphBuilder) -> Iterator[tuple[str, Target]]:
    """The actors that are being created, with their owners: each may be a supervisor, which gets handles of its owner.

    Its source is known once it runs. Those that wait for resources may wait for long, so they do not count.
    """
    for task in graph.index.creations.values():
        vertex = graph.vertices.get(key_of_task(graph.index, task.task_id))
        if vertex is not None and (vertex.wait is None or not vertex.wait.resources):
            yield task.owner_id, Target(vertex=vertex.key)


def _with_descendants(refs: Iterable[Ref], subtasks: Mapping[str, Sequence[str]]) -> set[str]:
    """The tasks of these refs and the unfinished ones that descend from them, as ``ray.cancel`` cancels both."""
    ahead = [producer_task_id(ref.ref) for ref in refs]
    found: set[str] = set()
    while ahead and len(found) < MAX_DESCENDANTS:
        task = ahead.pop()
        if task not in found:
            found.add(task)
            ahead += subtasks.get(task, ())
    return found


def _failing(graph: GraphBuilder, wait: Wait) -> Wait:
    """The wait with the awaited targets that may fail; that others do not is assumed if their source shows that."""
    is_safe = {target: _cannot_fail(graph, graph.vertices[target.vertex]) for target in wait.failing}
    found = replace(wait, failing=tuple(target for target in wait.failing if not is_safe[target]))
    safe = [target for target in wait.failing if is_safe[target]]
    if not safe:
        return found
    names = tuple(graph.vertices[target.vertex].subject for target in safe[:1])
    proven = wait.proven_groups if wait.assumed else wait.groups
    return replace(
        found,
        assumed=(*wait.assumed, assumption("does not fail", *names)),
        proven_groups=tuple(Group(needs=one.needs, targets=(*one.targets, *safe * one.needs)) for one in proven),
    )


def _cannot_fail(graph: GraphBuilder, vertex: Vertex) -> bool:
    """Whether it is code of the user that runs or sleeps, and raises nothing after that, by its source."""
    frames = graph.index.frames_of_vertex(vertex) if vertex.wait is None else ()
    own = [frame for frame in frames if frame.origin == "user"]
    return bool(own) and not any(frame.may_fail for frame in own)


def holders_of(index: SampleIndex, vertices: Iterable[Vertex]) -> set[str]:
    """The workers that hold a ref or handle with which one of these could be cancelled or killed, and their own."""
    found: set[str] = set()
    for vertex in vertices:
        actor = actor_of_task(vertex.task_id) if vertex.task_id else None
        for task_id in _with_ancestors(index, vertex.task_id):
            found.update(index.refs.holders_of_task.get(task_id, ()))
        found.update(ref.holder_id for ref in index.refs.handles_of.get(actor or "", ()) if ref.local_uses)
        found.update([vertex.worker_id] if vertex.worker_id else [])
    return found


def _with_ancestors(index: SampleIndex, task_id: str | None) -> set[str]:
    """A task and those that it descends from."""
    found: set[str] = set()
    while task_id and task_id not in found:
        found.add(task_id)
        task = index.tasks.get(task_id)
        task_id = task.parent_task_id if task else None
    return found


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
