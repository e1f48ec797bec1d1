"""What keeps a task or actor from its start though resources are free: its environment, a worker, room for arguments.

Before a raylet starts a task, it pins the arguments of the task that are in shared memory. With those of the tasks that
run there they may take a share of the object store, by default 70 % (``RAY_max_task_args_memory_fraction``). They are
pinned until the task ends. Only the raylet knows which requests wait for that; it writes their number every 10 s.

Then it takes an idle worker, or starts one, unless as many are starting as it may start at a time: by default as many
as the node has CPUs. A process that has not connected after 60 s, or has died before, is started again, for ever. A
request with an affinity to a certain node waits in the queue of that node's raylet, though another node has what it
asks for; Ray reports no affinities of tasks. With an affinity to a dead node it fails. Seen on Ray 2.60.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, for_any, waits_for
from dstack.analysis.graph.resource_holders import plain, start_of, starts_of_workers
from dstack.analysis.graph.resource_requests import Resources
from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.diagnosis import CallName, Group, Target, Vertex, Wait
from dstack.model.snapshot import Actor, Node, producer_task_id
from dstack.model.vertex_facts import Assumption, Reason, ResourceRequest, Subject, assumption, reason, subject
from dstack.model.vertex_keys import AnyKey, Unknown, UnknownKey
from dstack.observed.node import EnvironmentSetup, RayletCount, RayletReport, Task

UNINSTALLED = ("env_vars", "config", "worker_process_setup_hook", "nsight", "py_executable")
"""Parts of a runtime environment that need no installation; other names are those of plugins."""
ANOTHER_WORKER = CallName(site="executor", text="the start of a worker process")
UNEXPLAINED: tuple[Unknown, ...] = ("scheduler", "holder", "executor")
"""The unknown targets that a task may wait for while Ray installs its environment, or starts a worker for it."""
STORE = "object_store_memory"
ASSIGNED = "PENDING_NODE_ASSIGNMENT"
USUAL_SHARE = 0.7
MOST_PINS = 2
"""How many tasks are named that use values beside which there is no room."""
WAITING_FOR_ARGUMENTS: RayletCount = "waiting for arguments"
TRANSFER_COUNTS: tuple[RayletCount, ...] = ("queued pulls", "pulled bytes", "pending restores", "pending spills")
SENT_S = 0.5
"""The most that a request takes from its owner to the raylet."""
STARTS: tuple[RayletCount, RayletCount] = ("pending registrations", "pending starts")
"""What a raylet counts of worker processes: those that have not connected, and those that it may not start yet."""
QUEUES: tuple[RayletCount, ...] = ("waiting for resources", "waiting for other nodes")
MAX_DELAYS = 3
"""So many delays of one task are named."""


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
        return waits_for("executor", start_of(graph, own))
    starts = starts_of_workers(graph, task.job_id, node_id)
    is_replaced = wait is None or _is_unexplained(wait) or set(wait.targets) <= set(starts)
    if not starts or not is_replaced:
        return wait
    others = () if wait is None or all_run(graph, starts) else (graph.unknown_waker(ANOTHER_WORKER, task.job_id),)
    inferred = reason("any starting worker") if len(starts) > 1 else None
    return waits_for("executor", *starts, *others, inferred=inferred)


def all_run(graph: GraphBuilder, starts: Iterable[Target]) -> bool:
    """Whether none of the starting workers waits for something."""
    return all(graph.vertices[start.vertex].wait is None for start in starts)


def _is_unexplained(wait: Wait) -> bool:
    return any(group.has_unknown(kind) for group in wait.groups for kind in UNEXPLAINED)


def _target(graph: GraphBuilder, setup: EnvironmentSetup) -> Target:
    index = graph.index
    node = index.nodes.get(setup.node_id)
    ahead_s = (node.clock_ahead_s if node else None) or 0.0
    age_s = max(0.0, index.snapshot.taken_at + index.snapshot.total_s - (setup.started_at - ahead_s))
    return graph.unknown("setup", setup.node_id, setup.pid, subject=subject("setup", setup, node, age_s))


class RayletReports:
    """The last reports of raylets in one sample, and the tasks that these may be about."""

    def __init__(self, index: SampleIndex, resources: Resources) -> None:
        self._index = index
        self._resources = resources
        self._reports = {report.node_id: report for report in index.snapshot.raylet_reports}
        self._has_one_time = index.snapshot.has_one_time

    def of(self, node: Node) -> RayletReport | None:
        """The last report from a node."""
        return self._reports.get(node.node_id)

    def about(self, node: Node, task: Task) -> RayletReport | None:
        """The last report from a node, if it is known to be younger than the request for a task."""
        report = self.of(node) if self._has_one_time else None
        times = self._index.snapshot.task_times.get(task.task_id) if report else None
        since = times.states.get(ASSIGNED) if times else None
        if report is None or since is None:
            return None
        return report if since + SENT_S < report.written_at else None

    def age(self, delays: Iterable[Reason]) -> Reason:
        """How long ago the nodes of these delays have reported, at most."""
        written_at = min(self._reports[node.node_id].written_at for node in _nodes(delays))
        snapshot = self._index.snapshot
        return reason("reported", max(0.0, snapshot.taken_at + snapshot.total_s - written_at))

    @cached_property
    def candidates(self) -> list[Task]:
        """The tasks that no resource keeps from running."""
        waits = ((task, self._resources.wait_of_task(task)[0]) for task in self._assigned)
        return [task for task, wait in waits if wait and waits_for_scheduler(wait)]

    @property
    def are_about_candidates(self) -> bool:
        """Whether no other known task waits in the queues of raylets."""
        return len(self.candidates) == len(self._assigned)

    @cached_property
    def _assigned(self) -> list[Task]:
        tasks = self._index.tasks.values()
        return [task for task in tasks if task.state == ASSIGNED and task.kind != "ACTOR_TASK"]


def waits_for_scheduler(wait: Wait) -> bool:
    """Whether a wait is for a scheduler that has free resources."""
    return any(group.has_unknown("scheduler") for group in wait.groups)


class Delays:
    """What delays tasks whose resources are free, by the reports of raylets, in the order of what must happen first."""

    def __init__(self, graph: GraphBuilder, resources: Resources, reports: RayletReports) -> None:
        self._graph = graph
        self._resources = resources
        self._reports = reports

    def wait_for(self, task: Task, wait: Wait) -> Wait:
        """The wait for what delays a task, in place of one for a scheduler; the same wait if no report shows that."""
        if not waits_for_scheduler(wait):
            return wait
        found = (delay for node in self._nodes(task) for delay in self._starts(node, task))
        if starts := list(islice(found, MAX_DELAYS)):
            start = subject("worker start", *starts, self._reports.age(starts))
            return waits_for("executor", self._graph.unknown("scheduler", *_ids(starts), subject=start))
        if queues := list(islice(self._queues(task), MAX_DELAYS)):
            asked = self._resources.asked_by(task)
            scheduler = subject("scheduler", asked, *queues, self._reports.age(queues))
            return waits_for(
                "resources", self._graph.unknown("scheduler", *_ids(queues), str(asked), subject=scheduler)
            )
        return wait

    def _nodes(self, task: Task) -> Iterator[Node]:
        """The nodes on which all that a task asks for is free."""
        return (node for node, missing in self._resources.places_for(task) if not missing)

    def _starts(self, node: Node, task: Task) -> Iterator[Reason]:
        """What delays the start of worker processes on a node."""
        report = self._reports.about(node, task)
        if report is None or not (waiting := report.counts.get("waiting for workers", 0)):
            return
        starting, queued = (report.counts.get(name, 0) for name in STARTS)
        late = report.counts.get("late registrations", 0)
        if queued:
            yield reason("start limit", node, starting, queued)
        elif starting and report.starting == 0:
            yield reason("lost starts", node, starting)
        elif starting:
            yield reason("unconnected starts", node, starting)
        if late:
            yield reason("late starts", node, late)
        if not starting and not queued:
            parts = ", ".join(part for part in task.environment if part not in UNINSTALLED)
            yield reason("environment first", node, parts) if parts else reason("no start", node, waiting)

    def _queues(self, task: Task) -> Iterator[Reason]:
        """The queues of raylets that hold requests which cannot run there, while no known task belongs there."""
        if not self._reports.are_about_candidates:
            return
        missing = {node.node_id: amounts for node, amounts in self._resources.places_for(task)}
        for node in self._resources.nodes:
            counts = report.counts if (report := self._reports.about(node, task)) else {}
            queued = sum(counts.get(name, 0) for name in QUEUES)
            if queued and missing.get(node.node_id):
                lacking = ResourceRequest(amounts=plain(missing[node.node_id]))
                yield reason("queued on node", node, queued, lacking)
            if infeasible := counts.get("infeasible requests", 0):
                yield reason("infeasible on node", node, infeasible)


def _ids(delays: Iterable[Reason]) -> Iterator[str]:
    """What identifies these delays."""
    return (f"{delay.why} {node.node_id}" for delay in delays for node in _nodes([delay]))


def _nodes(delays: Iterable[Reason]) -> Iterator[Node]:
    return (of for delay in delays for of in delay.of if isinstance(of, Node))


class ArgumentMemory:
    """Waits for room for arguments in one sample."""

    def __init__(self, graph: GraphBuilder, resources: Resources, reports: RayletReports) -> None:
        self._graph = graph
        self._index = graph.index
        self._resources = resources
        self._reports = reports

    def wait_for(self, task: Task, wait: Wait) -> Wait:
        """The wait for running tasks to release their arguments, in place of one for a scheduler that has resources.

        If it is not certain that the task waits for that, the wait is for something unknown.
        """
        if not waits_for_scheduler(wait):
            return wait
        node = next((node for node in self._resources.nodes if self._may_lack_room(node, task)), None)
        if node is None:
            return wait
        report = self._certain_report(node, task)
        if report and any(self._holders(node)):
            assumed = assumption("waits for memory", report.waiting_for_memory, node)
            return _wait_for_room((self._room(node, task),), (assumed,), wait.groups)
        room = self._subject(node, task)
        return waits_for("resources", self._graph.unknown("argument memory", node.node_id, task.owner_id, subject=room))

    def _may_lack_room(self, node: Node, task: Task) -> bool:
        """Whether a raylet reports waiting requests, or has not reported since and not all arguments fit."""
        report = self._reports.of(node)
        if report and report.waiting_for_memory:
            return True
        if self._reports.about(node, task):
            return False
        all_bytes = sum(worker.argument_bytes for worker in self._index.worker_samples.values())
        return self._own_bytes(task) > 0 and all_bytes > self._share(node) * self._store_bytes(node)

    def _share(self, node: Node) -> float:
        report = self._reports.of(node)
        return (report.argument_share if report else None) or USUAL_SHARE

    def _store_bytes(self, node: Node) -> float:
        return self._resources.holders.total(node).get(STORE, 0.0)

    def _own_bytes(self, task: Task) -> int:
        owner = self._index.worker_samples.get(task.owner_id)
        return owner.argument_bytes if owner else 0

    def _certain_report(self, node: Node, task: Task) -> RayletReport | None:
        """The report of the only raylet, if it has as many requests as there are tasks that it could report."""
        is_only = len(self._resources.nodes) == 1 and not self._index.snapshot.autoscaler
        report = self._reports.about(node, task) if is_only else None
        return report if report and len(self._reports.candidates) == report.waiting_for_memory else None

    def _room(self, node: Node, task: Task) -> Target:
        key = AnyKey("room", (node.node_id, "arguments", task.owner_id))
        if key not in self._graph.vertices:
            wait = _wait_for_room(tuple(dict.fromkeys(self._holders(node))))
            self._graph.add(Vertex(key=key, kind="room", subject=self._subject(node, task), wait=wait))
        return Target(vertex=key)

    def _subject(self, node: Node, task: Task) -> Subject:
        report = self._reports.of(node)
        held = report.argument_bytes if report and report.waiting_for_memory else None
        share = report.argument_share if report else None
        known = node, self._own_bytes(task), held, int(self._store_bytes(node)), share
        if held and not any(self._holders(node)):
            return subject("room for arguments", *known, subject("arguments of no task"))
        return subject("room for arguments", *known, *islice(self._pins(node), MOST_PINS))

    def _pins(self, node: Node) -> Iterator[Subject]:
        """The tasks on a node that use values of others in shared memory, with their sizes and how long they run."""
        workers = {worker.worker_id for worker in self._index.present_workers if worker.node_id == node.node_id}
        used: dict[str, int] = defaultdict(int)
        for value in self._index.snapshot.stored.largest if self._index.snapshot.stored else ():
            for use in value.uses:
                if use.is_mapped and use.worker_id in workers and use.worker_id != value.owner_id:
                    used[use.worker_id] += value.size_bytes
        for worker_id, size in sorted(used.items(), key=lambda pair: -pair[1]):
            running = self._index.worker_samples[worker_id].running_task_ids or ()
            if len(running) == 1 and self._index.actor_of_worker(worker_id) is None:
                yield subject("pinned arguments", subjects.task(self._index, running[0]), size, self._age_s(running[0]))

    def _age_s(self, task_id: str) -> float | None:
        """For how long a task runs, if Ray tells that."""
        times = self._index.snapshot.task_times.get(task_id)
        since = times.states.get("RUNNING") if times and self._index.snapshot.has_one_time else None
        return None if since is None else max(0.0, self._index.snapshot.taken_at + self._index.snapshot.total_s - since)

    def _holders(self, node: Node) -> Iterator[Target]:
        """All whose arguments may be pinned on a node: tasks that were sent there, actors, leases without a task."""
        workers = {worker.worker_id for worker in self._index.present_workers if worker.node_id == node.node_id}
        for task in self._index.tasks.values():
            runs_there = self._index.worker_of_task.get(task.task_id) in workers
            is_sent = task.state == "SUBMITTED_TO_WORKER" and task.node_id in (None, node.node_id)
            if task.kind in ("NORMAL_TASK", "ACTOR_CREATION_TASK") and (runs_there or is_sent):
                yield self._graph.task(task.task_id)
        for actor in self._index.snapshot.actors:
            if actor.worker_id in workers and actor.state == "ALIVE":
                yield self._resources.holders.end_of(actor)
        yield from starts_of_workers(self._graph, node_id=node.node_id)
        cpus = self._resources.holders.of(node, "CPU")
        yield from (held.target for held in cpus if isinstance(held.target.vertex, UnknownKey))
        silent = sorted(one for one in workers if self._index.is_unresponsive(one))
        yield from (self._resources.unread(worker_id) for worker_id in silent)


def _wait_for_room(
    targets: tuple[Target, ...], assumed: tuple[Assumption, ...] = (), proven: tuple[Group, ...] = ()
) -> Wait:
    return Wait(
        kind="resources",
        groups=for_any(*targets),
        total=len(targets),
        resources=(STORE,),
        inferred=reason("any holder") if len(targets) > 1 else None,
        assumed=assumed,
        proven_groups=proven,
    )


class MissingArguments:
    """Waits for arguments that are not in memory on the node of their task, in one sample.

    A request for a worker has its node by then. Its raylet fetches the arguments, and only counts the requests that
    wait for that, every 10 s. An argument whose every copy was lost with a node is made again by its task (Ray 2.60).
    """

    def __init__(self, graph: GraphBuilder, reports: RayletReports) -> None:
        self._graph = graph
        self._index = graph.index
        self._reports = reports

    def wait_for(self, task: Task, wait: Wait) -> Wait:
        """The wait for a lost argument or for the transfer of one, in place of one for a scheduler that has resources.

        Which of its owner's lost arguments a task takes is unknown. The wait for them is assumed if raylets report as
        many requests that wait for arguments as there are tasks that it could be; else the scheduler may be the reason.
        """
        if not waits_for_scheduler(wait):
            return wait
        lost = [self._graph.task(producer_task_id(ref)) for ref in self._lost(task)]
        reports = self._waiting(task)
        requests = sum(report.counts[WAITING_FOR_ARGUMENTS] for report in reports)
        inferred = reason("any lost argument", len(lost)) if len(lost) > 1 else None
        if lost and requests and requests == len(self._reports.candidates):
            assumed = assumption("waits for arguments", requests, self._index.nodes[reports[0].node_id])
            found = waits_for("arguments", *lost, inferred=inferred)
            return replace(found, assumed=(assumed,), proven_groups=wait.groups)
        targets = lost or [self._transfer(report) for report in reports]
        others = () if not lost and requests >= len(self._reports.candidates) else wait.targets
        return waits_for("arguments", *targets, *others, inferred=inferred) if targets else wait

    def _waiting(self, task: Task) -> list[RayletReport]:
        """The reports that are younger than the request for a task, of raylets whose requests wait for arguments."""
        reports = (self._reports.about(node, task) for node in self._index.nodes.values())
        return [one for one in reports if one and one.counts.get(WAITING_FOR_ARGUMENTS)]

    def _transfer(self, report: RayletReport) -> Target:
        """The transfer of arguments to a node, with what its raylet counts."""
        counts = report.counts
        sizes = (counts.get(name, 0) for name in TRANSFER_COUNTS)
        node = self._index.nodes[report.node_id]
        transfer = subject("transfer of arguments", node, counts[WAITING_FOR_ARGUMENTS], *sizes)
        return self._graph.unknown("transfer of arguments", node.node_id, subject=transfer)

    def _lost(self, task: Task) -> list[str]:
        lost = dict.fromkeys(self._index.refs.lost_arguments_of.get(task.owner_id, ()))
        return [ref for ref in lost if producer_task_id(ref) != task.task_id]
