"""A running cluster as a source of samples: the control plane, every core worker, the processes of every node."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from dstack.errors import ClusterError
from dstack.model.snapshot import ClusterPoll, Sample, Snapshot, Worker, WorkerPoll, WorkerSample
from dstack.observed.node import CoreWorkerReply, Failure, HostFigures
from dstack.observed.processes import Process
from dstack.observed.reading_options import ReadingOptions
from dstack.probes.connection.background import begin
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.ray_protocol import protocol
from dstack.probes.node.wire import DumpRequest
from dstack.probes.node_access.node_readers import Budget, Extras, NodeReaders, ProbeSession, Reading, Wanted
from dstack.probes.node_access.ray_agents import Agents, completed, unknown_waits, unread_workers, with_pause_as_remedy
from dstack.probes.observations import MergedAnswers, Observations, awaited_refs, ends_elsewhere, has_children
from dstack.probes.ray_state.control_plane import (
    AGAIN,
    CHECK_GCS,
    Inventory,
    take_inventory,
    take_roll,
)
from dstack.probes.ray_state.platform_events import ask_platform_events
from dstack.probes.ray_state.stored_objects import stored_objects
from dstack.probes.ray_state.task_events import (
    EndedTasks,
    ask_arrived_calls,
    ask_ended_tasks,
    ask_history,
    ask_task_times,
)
from dstack.probes.ray_state.workers import Liveness, ask_core_workers, questions, relevant_refs
from dstack.words import plural

Progress = Callable[[str], None]
Answers = Mapping[str, CoreWorkerReply]
"""The answers of core workers, by worker id."""
TIMES_TIMEOUT_S = 0.5
PLATFORM_TIMEOUT_S = 2.0
ENDED_TIMEOUT_S = 5.0
"""Twice the time that two requests take the dashboard head with as many tasks as it keeps; the GCS takes a third."""
LISTED_OBJECTS, PLACED_OBJECTS = 100, 20
"""How many of the largest values in the object store are listed, and of how many of an owner it is asked where."""
DUMPS_KEPT_S = 3600.0
"""How long after a job has ended its dumps of flight recorders are read."""
WORKER_DIED = "WORKER_DIED"
"""Ray's reason of an actor's death where its process ended by itself; seen on Ray 2.46 and 2.60."""
MAX_TCP_ENDS = 1_000
"""The most TCP sockets of other nodes whose holders a sample finds."""
MAX_SETUP_NODES = 100
"""The most nodes on which installations of runtime environments are searched."""
STARTING = "no node has joined the cluster yet: it is starting"
NO_NODE = "no node of the cluster is alive"
RESTARTED = "the GCS restarted and lost the state of the cluster"


class ClusterProbe:
    """Takes the samples of one snapshot, with the probes of a session.

    ``objects`` is how many of the largest values in the object store it lists, 0 for none, None for a few.

    Raises :class:`dstack.errors.ClusterError` on construction when the cluster cannot be reached.
    """

    def __init__(
        self,
        session: ProbeSession,
        address: str | None,
        options: ReadingOptions,
        progress: Progress,
        objects: int | None = None,
    ) -> None:
        self._observed = Observations()
        self._objects = LISTED_OBJECTS if objects is None else objects
        self._pauses = options.pauses
        self._logs = options.logs
        self._progress = progress
        progress("connecting")
        self.cluster: Cluster = session.connect(address)
        self._inventory = Inventory()
        self._liveness = Liveness()
        self._readers = NodeReaders(session, options, self._liveness, progress)
        self._agents = Agents(self.cluster)

    def take_first_sample(self, deadline_s: float) -> None:
        """Sample 1: everything, within ``deadline_s``."""
        budget = Budget.of(1, deadline_s)
        self._progress("reading the control plane")
        self._inventory = take_inventory(self.cluster, budget.rpc_timeout_s())
        self._note(self._inventory.failures)
        self._note(lost.failure() for lost in protocol().lost if not lost.is_vital)
        if not any(node.alive for node in self._inventory.nodes):
            reason = NO_NODE if self._inventory.nodes else STARTING
            self._note([Failure(stage="control plane", reason=reason, cause="starting", remedy=AGAIN)])
        wanted = {worker.worker_id for worker in self._inventory.workers}
        is_history_wanted, reads_all_logs = self._observed.history is not None, self._logs == "all"
        extras = Extras(
            children=True,
            starting=True,
            finished_spans=is_history_wanted,
            logs_of_nodes=reads_all_logs,
            outlines=_drivers(self._inventory) if is_history_wanted else {},
            dumps=_dumps(self._inventory),
            dumps_of=tuple(islice(_nodes_of_dead_actors(self._inventory), MAX_SETUP_NODES)),
        )
        logs_of = self._inventory.workers if reads_all_logs else ()
        self._sample(self._inventory, wanted, budget, extras, logs_of)

    def take_second_sample(
        self,
        worker_ids: Iterable[str],
        deadline_s: float,
        *,
        with_setups: bool = False,
        logs_of: Sequence[Worker] = (),
    ) -> None:
        """Sample 2, after sample 1 has ended everywhere: the state of all, the processes of these and of new workers.

        ``with_setups`` also finds the runtime environments that are being installed, looks for workers that are
        starting on nodes without others, and reads the logs of raylets. ``logs_of`` are workers whose logs it reads.
        If the control plane has ended meanwhile, the snapshot gets a failure instead of a second sample.
        """
        budget = Budget.of(2, deadline_s)
        known = {worker.worker_id for worker in self._inventory.workers}
        self._progress("taking the second sample")
        inventory = self._second_inventory(budget)
        if inventory is None:
            return
        alive = (node.node_id for node in inventory.nodes if node.alive)
        extras = Extras(
            children=has_children(self._observed.samples),
            starting=True,
            reach=True,
            setups_of=tuple(islice(alive, MAX_SETUP_NODES if with_setups else 0)),
            tcp_ends=tuple(islice(ends_elsewhere(self._observed.samples), MAX_TCP_ENDS)),
            logs_of_nodes=with_setups,
        )
        new = tuple(worker for worker in inventory.workers if worker.worker_id not in known)
        self._inventory.actors = inventory.actors or self._inventory.actors
        self._inventory.autoscaler_state = inventory.autoscaler_state or self._inventory.autoscaler_state
        self._inventory.workers = (*self._inventory.workers, *new)
        self._sample(inventory, {*worker_ids, *(worker.worker_id for worker in new)}, budget, extras, logs_of)

    def read_quickly(self, worker_ids: Iterable[str], deadline_s: float) -> None:
        """A partial sample between the two: the processes of some workers, and their unfinished tasks.

        A failed process or core worker is no failure of the snapshot. A node that is given up is one: the second sample
        leaves it out.
        """
        budget = Budget.of(2, deadline_s)
        wanted = {*worker_ids}
        workers = [w for w in self._liveness.present(self._inventory.workers) if w.worker_id in wanted]
        wanted_there = Wanted(to_ask=self._liveness.to_ask(workers), to_read=workers)
        how = questions(self.cluster.metadata, budget.rpc_timeout_s(), with_refs=False)
        found = MergedAnswers(self._observed, workers, budget.sample, lambda _: (), self._inventory)
        self._note(self._readers.read(wanted_there, how, self._inventory, budget, Extras(reach=True), found.add))
        self._observed.readings.append(
            Sample(
                began_s=self._observed.since_began_s(budget.began),
                ended_s=self._observed.since_began_s(time.monotonic()),
                workers=tuple(_worker_sample(one.worker_id, found.replies, found.processes) for one in workers),
                tasks=tuple(task for answer in found.replies.values() for task in answer.tasks),
            )
        )

    def ask_times(self, task_ids: Sequence[str], deadline_s: float) -> None:
        """Requests since when these tasks are in their states; :meth:`snapshot` adds the reply."""
        if task_ids and deadline_s > 0:
            timeout_s = min(TIMES_TIMEOUT_S, deadline_s)
            self._observed.task_times = begin(lambda: ask_task_times(self.cluster, task_ids, timeout_s))

    def ask_platform_events(self, deadline_s: float) -> None:
        """Requests what the platform says of nodes that do not join; :meth:`snapshot` adds the reply."""
        if deadline_s > 0:
            timeout_s = min(PLATFORM_TIMEOUT_S, deadline_s)
            self._observed.platform_events = begin(lambda: ask_platform_events(self.cluster, timeout_s))

    def ask_ended_tasks(self, deadline_s: float) -> None:
        """Requests which tasks failed and which calls are repeated; :meth:`snapshot` adds the reply."""
        timeout_s = min(ENDED_TIMEOUT_S, deadline_s)
        if timeout_s > 0 and any(not job.is_dead for job in self._inventory.jobs):
            self._observed.ended_tasks = begin(lambda: self._ended_tasks(timeout_s))

    def _ended_tasks(self, timeout_s: float) -> EndedTasks:
        """The earliest time that any host's clock may show now."""
        jobs = self._inventory.jobs
        behind_s = min(
            (self._observed.assembly.with_host(n).clock_ahead_s or 0.0 for n in self._inventory.nodes), default=0.0
        )
        return ask_ended_tasks(self.cluster, jobs, timeout_s, time.time() + min(0.0, behind_s))

    def ask_history(self, limit: int, deadline_s: float) -> None:
        """Requests the newest ``limit`` attempts of tasks; :meth:`snapshot` adds the reply."""
        self._observed.history = begin(lambda: ask_history(self.cluster, limit, deadline_s))

    def snapshot(self, *, with_history: bool = True) -> Snapshot:
        """The snapshot of everything observed so far; waits for the history, if it was requested."""
        return self._observed.snapshot(self.cluster, self._inventory, self._liveness, with_history=with_history)

    def _note(self, failures: Iterable[Failure]) -> None:
        self._observed.failures += failures

    def _second_inventory(self, budget: Budget) -> Inventory | None:
        """The control plane's current inventory; None, with a failure, if it is not the same cluster."""
        try:
            inventory = take_inventory(self.cluster, budget.rpc_timeout_s(), budget.sample)
        except ClusterError as error:
            self._note([Failure(stage="control plane", reason=error.message, remedy=error.remedy, sample=2)])
            return None
        if not {node.node_id for node in inventory.nodes} & {node.node_id for node in self._inventory.nodes}:
            self._note([Failure(stage="control plane", reason=RESTARTED, remedy=CHECK_GCS, sample=2)])
            return None
        self._note(inventory.failures)
        return inventory

    # The steps of a sample

    def _sample(
        self,
        inventory: Inventory,
        wanted: set[str],
        budget: Budget,
        extras: Extras,
        logs_of: Sequence[Worker] = (),
    ) -> None:
        """Asks all core workers of the inventory, and reads the wanted processes meanwhile."""
        self._liveness.note_listed(inventory)
        workers = self._liveness.to_ask(inventory.workers)
        to_read = [worker for worker in self._liveness.present(workers) if worker.worker_id in wanted]
        how = questions(self.cluster.metadata, budget.rpc_timeout_s(), places=self._places(budget.sample))
        found = MergedAnswers(
            self._observed, workers, budget.sample, lambda some: self._own_of(some, budget), inventory
        )
        self._note(
            self._readers.read(Wanted(workers, to_read, logs_of), how, self._inventory, budget, extras, found.add)
        )
        self._take_over(found)
        answers = found.replies
        answers |= self._ask_others(found, workers, budget)
        self._note_jobs(answers, budget)
        processes = self._processes(found, self._liveness.present(workers))
        self._note_ended(budget)
        workers = self._liveness.present(workers)
        others = {worker_id for worker_id, one in answers.items() if one.language}
        in_python = [worker for worker in workers if worker.worker_id in wanted - others]
        processes = self._complete(in_python, processes, budget)
        here = {worker.worker_id: answers[worker.worker_id] for worker in workers if worker.worker_id in answers}
        samples = [_worker_sample(worker.worker_id, here, processes) for worker in workers]
        samples += self._observed.add_starting(found.starting, inventory)
        self._note(found.failures_of({one.worker_id for one in found.starting}))
        self._add(inventory, tuple(samples), here, wanted, budget)

    def _places(self, sample: int) -> int:
        """Of how many values their owner is asked where they are: of few, in the second sample, unless all are wanted.

        That takes another request to each owner.
        """
        if self._objects > LISTED_OBJECTS:
            return self._objects
        return PLACED_OBJECTS if self._objects and sample > 1 else 0

    def _take_over(self, found: MergedAnswers) -> None:
        """Add what has not changed since an earlier sample; nothing, unless this is a round of a profile."""

    def _ask_others(
        self, found: MergedAnswers, workers: Iterable[Worker], budget: Budget
    ) -> dict[str, CoreWorkerReply]:
        """The replies to this host of core workers that no probe has asked, except on unreachable nodes."""
        done = found.asked | self._liveness.unreachable
        others = [w for w in workers if w.node_id not in done and w.worker_id not in found.replies]
        if not others:
            return {}
        how = questions(self.cluster.metadata, budget.rpc_timeout_s(), places=self._places(budget.sample))
        replies, failures = ask_core_workers(others, how, budget.deadline, budget.sample)
        self._note(failures)
        self._liveness.note_silent(failures)
        return replies

    def _note_jobs(self, answers: Answers, budget: Budget) -> None:
        """Notes which job each worker runs for, and asks the GCS whether jobs that began meanwhile are dstack's own."""
        self._liveness.note_answers(answers)
        if unlisted := self._liveness.unlisted_jobs(answers):
            self._liveness.requested_jobs |= unlisted
            with contextlib.suppress(ClusterError):
                self._liveness.note_listed(take_roll(self.cluster, budget.rpc_timeout_s()))

    def _own_of(self, answers: Answers, budget: Budget) -> list[str]:
        """The workers that run for dstack itself, among those with these answers."""
        self._note_jobs(answers, budget)
        return [worker_id for worker_id, one in answers.items() if self._liveness.is_own_job(one.job_id)]

    def _processes(self, found: MergedAnswers, workers: Iterable[Worker]) -> dict[str, Process]:
        """The processes of these workers by worker id; also notes what failed with them."""
        ids = {worker.worker_id for worker in workers}
        failures = found.failures_of(ids)
        self._liveness.note_silent(failures)
        self._note(failures)
        return {worker_id: process for worker_id, process in found.processes.items() if worker_id in ids}

    def _note_ended(self, budget: Budget) -> None:
        """Notes the workers that ended while they were read."""
        failures = [failure for failure in self._observed.failures_of(budget.sample) if failure.worker_id]
        self._liveness.note_ended(failures)
        if self._liveness.may_have_ended(failures):
            with contextlib.suppress(ClusterError):
                self._liveness.note_alive(failures, take_roll(self.cluster, budget.rpc_timeout_s()))

    def _complete(self, workers: Sequence[Worker], processes: dict[str, Process], budget: Budget) -> dict[str, Process]:
        """The processes with the stacks that only Ray's agents can read, or with ``--pause`` as a remedy.

        An agent's py-spy pauses the process that it reads.
        """
        unread = unread_workers(workers, processes, self._observed.failures_of(budget.sample))
        if not unread:
            return processes
        if not self._pauses:
            nodes = self._agents.present_on({worker.node_id for worker in unread}, budget.rpc_timeout_s())
            self._observed.failures = with_pause_as_remedy(self._observed.failures, unread, nodes, budget.sample)
            return processes
        self._progress(f"asking Ray's agents for {plural(len(unread), 'process', 'processes')}")
        answer, failures = self._agents.stacks_of(unread, self._inventory.jobs, budget.deadline, budget.sample)
        self._note(f for f in failures if f.worker_id or f.node_id not in self._liveness.given_up)
        return completed(processes, self._observed.assembly.add([], answer, budget.sample)[0])

    def _add(
        self,
        inventory: Inventory,
        workers: tuple[WorkerSample, ...],
        answers: Answers,
        wanted: set[str],
        budget: Budget,
    ) -> None:
        """Adds the sample to the record, with the refs and the arrived calls that matter for its waits."""
        arrived = self._arrived_calls(answers, budget)
        self._observed.note_refs([ref for answer in answers.values() for ref in answer.refs])
        if self._objects:
            self._observed.stored = stored_objects(answers, self._objects) or self._observed.stored
        of_first = (one.workers for one in self._observed.samples[:1])
        unknown = unknown_waits(one for one in workers if one.worker_id in wanted).union(*map(unknown_waits, of_first))
        awaited = awaited_refs(one.process for one in workers if one.process)
        awaited |= awaited_refs(
            one.process for reading in self._observed.readings for one in reading.workers if one.process
        )
        self._observed.samples.append(
            Sample(
                began_s=self._observed.since_began_s(budget.began),
                ended_s=self._observed.since_began_s(time.monotonic()),
                workers=workers,
                tasks=tuple(task for answer in answers.values() for task in answer.tasks),
                refs=tuple(relevant_refs(answers.values(), awaited, unknown)),
                placement_groups=inventory.placement_groups,
                total=inventory.total,
                available=inventory.available,
                arrived=arrived,
            )
        )

    def _arrived_calls(self, answers: Answers, budget: Budget) -> dict[str, int]:
        """The calls that have certainly arrived at their actor, with their attempts."""
        queued = _queued_calls(answers.values())
        if not queued:
            return {}
        arrived, failures = ask_arrived_calls(self.cluster, budget.rpc_timeout_s(), budget.sample)
        self._note(failures)
        return {task_id: attempt for task_id, attempt in arrived.items() if task_id in queued}


def _queued_calls(answers: Iterable[CoreWorkerReply]) -> set[str]:
    """The actor calls that were submitted and do not run."""
    answers = list(answers)
    running = {task_id for answer in answers for task_id in answer.running_task_ids}
    return {
        task.task_id
        for answer in answers
        for task in answer.tasks
        if task.kind == "ACTOR_TASK" and task.state == "SUBMITTED_TO_WORKER" and task.task_id not in running
    }


def _worker_sample(worker_id: str, answers: Answers, processes: Mapping[str, Process]) -> WorkerSample:
    answer = answers.get(worker_id)
    return WorkerSample(
        worker_id=worker_id,
        running_task_ids=answer.running_task_ids if answer else None,
        executed_tasks=answer.executed_tasks if answer else None,
        held=answer.held if answer else {},
        argument_bytes=answer.argument_bytes if answer else 0,
        process=processes.get(worker_id),
    )


POLLED_TASKS = 5000
"""The most tasks that one worker lists in a poll. Ray cuts to an arbitrary subset; above it only counters are used."""


def poll_cluster(
    session: ProbeSession, address: str | None, timeout_s: float, *, with_jobs: bool = False, with_figures: bool = False
) -> ClusterPoll:
    """Polls all workers, and lists jobs ``with_jobs``, and reads the figures of their hosts ``with_figures``.

    Raises :class:`dstack.ClusterError` if the GCS lists none.
    """
    cluster, had_probes = session.connect(address), session.has_probes
    budget = Budget.of(1, timeout_s)
    roll = take_roll(cluster, budget.rpc_timeout_s(), with_jobs=with_jobs)
    workers = [one for one in roll.workers if not (one.is_driver and (one.ip, one.pid) in roll.own_drivers)]
    jobs = roll.jobs
    replies, ended, hosts = _replies(session, cluster, roll, workers, budget, Extras(figures=with_figures))
    if session.has_probes and not had_probes:
        roll = take_roll(cluster, budget.rpc_timeout_s())  # the job of the new probes is dstack's own
    return ClusterPoll(
        workers=tuple(
            _worker(one, replies[one.worker_id])
            for one in workers
            if one.worker_id in replies and replies[one.worker_id].job_id not in roll.own_jobs
        ),
        silent=tuple(one.worker_id for one in workers if one.worker_id not in replies.keys() | ended),
        jobs=jobs,
        nodes=tuple(replace(node, host=hosts[node.node_id]) if node.node_id in hosts else node for node in roll.nodes),
    )


def _replies(
    session: ProbeSession,
    cluster: Cluster,
    roll: Inventory,
    workers: Sequence[Worker],
    budget: Budget,
    extras: Extras,
) -> tuple[dict[str, CoreWorkerReply], set[str], dict[str, HostFigures]]:
    """The replies by worker id, the workers that have ended, and the hosts by the id of their node.

    Workers that no probe can ask are asked from here.
    """
    liveness = Liveness()
    how = questions(cluster.metadata, budget.rpc_timeout_s(), limit=POLLED_TASKS, details=False, with_refs=False)
    readers = NodeReaders(session, ReadingOptions(), liveness, lambda _: None)
    readings: list[Reading] = []
    readers.read(Wanted(workers), how, roll, budget, extras, readings.append)
    answers = [reading.answer for reading in readings]
    hosts = {node: one.answer.host for one in readings if one.answer.host for node in one.nodes}
    replies = {worker_id: reply for answer in answers for worker_id, reply in answer.core_workers.items()}
    causes = {one.worker_id: one.cause for answer in answers for one in answer.failures if one.worker_id}
    unasked = [one for one in workers if one.worker_id not in replies.keys() | causes.keys()]
    if others := [one for one in unasked if one.node_id not in liveness.unreachable]:
        how["timeout_s"] = budget.rpc_timeout_s()
        found, failures = ask_core_workers(others, how, budget.deadline)
        replies |= found
        causes |= {one.worker_id or "": one.cause for one in failures}
    return replies, {worker_id for worker_id, cause in causes.items() if cause == "ended"}, hosts


def _worker(worker: Worker, reply: CoreWorkerReply) -> WorkerPoll:
    return WorkerPoll(
        worker_id=worker.worker_id,
        is_driver=worker.is_driver,
        running=reply.running_task_ids,
        pending=None if reply.is_cut else reply.task_states,
        finished=max(0, reply.executed_tasks - len(reply.running_task_ids)),
        counters=reply.counters,
    )


def _dumps(inventory: Inventory) -> DumpRequest | None:
    """The dumps of flight recorders since the first of the jobs began that run, or ended a short time ago."""
    recently = time.time() - DUMPS_KEPT_S
    jobs = (one for one in inventory.jobs if not one.is_dead or (one.ended_at or 0.0) > recently)
    since = min((one.started_at for one in jobs if one.started_at), default=None)
    return {"since": since, "prefixes": sorted(inventory.dump_prefixes)} if since else None


def _nodes_of_dead_actors(inventory: Inventory) -> dict[str, None]:
    """The live nodes on which processes of actors have died a short time ago: no worker may be left there."""
    alive, recently = {one.node_id for one in inventory.nodes if one.alive}, time.time() - DUMPS_KEPT_S
    dead = (one for one in inventory.actors if one.death_reason == WORKER_DIED and (one.ended_at or 0.0) > recently)
    return dict.fromkeys(one.node_id for one in dead if one.node_id in alive)


def _drivers(inventory: Inventory) -> dict[str, str]:
    """The drivers by worker id, with their jobs."""
    jobs = {(job.driver_ip, job.driver_pid): job.job_id for job in inventory.jobs}
    drivers = (worker for worker in inventory.workers if worker.is_driver)
    return {one.worker_id: jobs[one.ip, one.pid] for one in drivers if (one.ip, one.pid) in jobs}
