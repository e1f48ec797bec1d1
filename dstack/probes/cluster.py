"""A running cluster as a source of samples: the control plane, every core worker, the processes of every node."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

import dstack
from dstack.errors import ClusterError
from dstack.model import Failure, GoneWorker, Process, Sample, Snapshot, TaskTimes, Worker, WorkerSample
from dstack.probes.agents import Agents
from dstack.probes.answers import MALFORMED, MalformedAnswer, NodeFailure, validated
from dstack.probes.assemble import Assembly
from dstack.probes.background import begin, within
from dstack.probes.clocks import ahead_s, clock_notes
from dstack.probes.connect import Cluster, connect
from dstack.probes.control_plane import CHECK_GCS, Inventory, client_notes, take_inventory
from dstack.probes.core_workers import CoreWorkerStats, ask_core_workers, relevant_refs
from dstack.probes.node import wire
from dstack.probes.node.probe import NodeProbe
from dstack.probes.raylet_symbols import thread_context_layout
from dstack.probes.remote import RemoteProbes
from dstack.probes.targets import own_addresses, targets, with_environment
from dstack.probes.task_events import ask_arrived_calls
from dstack.probes.task_times import ask_task_times

Progress = Callable[[str], None]


class Seen(NamedTuple):
    """What a probe answered about some nodes, and by how much the clock there is ahead of ours."""

    nodes: list[str]
    answer: wire.Answer
    clock_ahead_s: float | None = None


RPC_TIMEOUT_S = 3.0
TIMES_TIMEOUT_S = 0.5
OVERRUN_S = 2.0
"""How long after its deadline the reading of this host's processes is awaited: reading one of them may block."""
NO_NODE = "the GCS lists no live node: it has just started, or has lost the cluster"
RESTARTED = "the GCS has restarted and does not know the cluster any more"
PAUSED_BY_AGENT = "Ray's agent can read its stacks with a pause of some ms."
AGENTS_SHARE = 0.08
"""The part of a sample's time that is kept for asking Ray's agents about processes that could not be read."""


@dataclass(frozen=True)
class Options:
    """How to read processes.

    ``native`` adds C frames (pauses each target over 100 ms), ``locals`` keeps the values of locals, ``pause`` stops
    running targets for exact stacks of running threads. Without ``native`` or ``pause`` no process is paused, traced or
    signalled.
    """

    native: bool = False
    locals: bool = False
    pause: bool = False

    @property
    def pauses(self) -> bool:
        """Whether a process may be paused."""
        return self.native or self.pause


class ClusterProbe:
    """Looks at one cluster; a context manager, so that nothing of it stays in the cluster.

    Raises :class:`dstack.errors.ClusterError` on construction when the cluster cannot be reached.
    """

    def __init__(self, address: str | None, options: Options, progress: Progress) -> None:
        self._began = self._deadline = time.monotonic()
        self._taken_at = time.time()
        self._options = options
        self._progress = progress
        progress("connecting")
        self.cluster: Cluster = connect(address)
        self._thread_context = begin(thread_context_layout)
        self._assembly = Assembly()
        self._inventory = Inventory()
        self._job_of: dict[str, str | None] = {}
        self._actor_of: dict[str, str | None] = {}
        self._elsewhere: set[str] = set()
        self._ended: set[str | None] = set()
        self._gone: dict[str, GoneWorker] = {}
        self._own_jobs: set[str | None] = set()
        self._own_drivers: set[tuple[str, int]] = set()
        self._given_up: set[str] = set()
        self._silent: set[str | None] = set()
        self._remote: RemoteProbes | None = None
        self._local = NodeProbe()
        self._agents = Agents(self.cluster)
        self._shallow: set[str] = set()
        self._samples: list[Sample] = []
        self._times: Future[dict[str, TaskTimes]] | None = None
        self._failures: list[Failure] = []

    def __enter__(self) -> ClusterProbe:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._remote is not None:
            self._remote.close()

    def look(self, deadline_s: float) -> None:
        """Sample 1: everything, within ``deadline_s``."""
        began = time.monotonic()
        self._deadline = began + deadline_s
        self._progress("reading the control plane")
        self._inventory = take_inventory(self.cluster, self._timeout_s())
        self._failures += self._inventory.failures
        if not any(node.alive for node in self._inventory.nodes):
            self._failures.append(Failure(stage="control plane", reason=NO_NODE, remedy=CHECK_GCS))
        self._gone.update(self._inventory.gone_workers)
        self._note_own(self._inventory)
        self._sample(self._inventory, {w.worker_id for w in self._inventory.workers}, began)

    def look_again(self, worker_ids: Iterable[str], deadline_s: float) -> None:
        """Sample 2: the state of all, and the processes of these workers, begun after sample 1 has ended everywhere.

        Workers that are new since then are looked at as well. When the control plane is gone by then, that is a
        failure in the snapshot, and there is no second sample.
        """
        began = time.monotonic()
        self._deadline = began + deadline_s
        known = {worker.worker_id for worker in self._inventory.workers}
        self._progress("looking again at those that seem stuck")
        try:
            inventory = take_inventory(self.cluster, self._timeout_s(), sample=2)
        except ClusterError as error:
            self._failures.append(Failure(stage="control plane", reason=error.message, remedy=error.remedy, sample=2))
            return
        if not {node.node_id for node in inventory.nodes} & {node.node_id for node in self._inventory.nodes}:
            self._failures.append(Failure(stage="control plane", reason=RESTARTED, remedy=CHECK_GCS, sample=2))
            return
        self._failures += inventory.failures
        self._gone.update(inventory.gone_workers)
        self._note_own(inventory)
        wanted = {*worker_ids, *(w.worker_id for w in inventory.workers if w.worker_id not in known)}
        self._inventory.actors = inventory.actors or self._inventory.actors
        new = tuple(worker for worker in inventory.workers if worker.worker_id not in known)
        self._inventory.workers = (*self._inventory.workers, *new)
        self._sample(inventory, wanted, began)

    def ask_times(self, task_ids: Sequence[str], deadline_s: float) -> None:
        """Begins to ask since when these tasks are in their states; :meth:`snapshot` takes in the answer."""
        if task_ids and deadline_s > 0:
            timeout_s = min(TIMES_TIMEOUT_S, deadline_s)
            self._times = begin(lambda: ask_task_times(self.cluster, task_ids, timeout_s))

    def snapshot(self) -> Snapshot:
        """All that has been seen so far."""
        nodes = tuple(map(self._assembly.with_host, self._inventory.nodes))
        hidden = {worker.worker_id for worker in self._inventory.workers if self._is_own(worker)} | self._ended
        return Snapshot(
            dstack_version=dstack.__version__,
            taken_at=self._taken_at,
            address=self.cluster.address,
            ray_version=self.cluster.ray_version,
            autoscaler=self._inventory.autoscaler,
            nodes=nodes,
            jobs=self._inventory.jobs,
            actors=self._inventory.actors,
            workers=tuple(self._with_ids(w) for w in self._inventory.workers if w.worker_id not in hidden),
            gone_workers=tuple(self._gone[owner] for owner in sorted(_owners(self._samples) & self._gone.keys())),
            frames=self._assembly.frames,
            stacks=self._assembly.stacks,
            sources=self._assembly.sources,
            samples=tuple(self._samples),
            task_times=self._times.result() if self._times else {},
            failures=tuple(failure for failure in self._failures if failure.worker_id not in hidden),
            notes=(*self.cluster.notes, *client_notes(self._inventory.jobs), *clock_notes(nodes)),
            total_s=round(time.monotonic() - self._began, 3),
        )

    def _timeout_s(self) -> float:
        """How long somebody may take to answer now."""
        return max(0.1, min(RPC_TIMEOUT_S, self._deadline - time.monotonic()))

    def _sample(self, inventory: Inventory, wanted: set[str], began: float) -> None:
        """One round: asks all the inventory's workers, and looks at the processes of those wanted.

        Who let a question time out before is not asked again: the others' second look would wait for that.
        """
        workers = [worker for worker in inventory.workers if worker.worker_id not in self._silent]
        number = len(self._samples) + 1
        timeout_s = self._timeout_s()
        asked = begin(lambda: ask_core_workers(workers, self.cluster.metadata, timeout_s, number))
        to_see = [worker for worker in workers if worker.worker_id in wanted and not self._is_own(worker)]
        seen = self._see_processes(to_see, number, self._deadline - (self._deadline - began) * AGENTS_SHARE)
        answers, failures = asked.result()
        self._failures += failures
        self._silent |= {failure.worker_id for failure in failures if failure.cause == "timeout"}
        self._note_jobs(inventory, answers, number)
        workers = [worker for worker in workers if not self._is_own(worker)]
        processes = self._take_in(seen, workers, number)
        self._note_ended(number)
        workers = [worker for worker in workers if worker.worker_id not in self._ended]
        self._ask_agents([worker for worker in workers if worker.worker_id in wanted], processes, number)
        answers = {w.worker_id: answers[w.worker_id] for w in workers if w.worker_id in answers}
        arrived = self._arrived_calls(answers.values(), number)
        self._samples.append(
            Sample(
                began_s=round(began - self._began, 4),
                ended_s=round(time.monotonic() - self._began, 4),
                workers=tuple(_worker_sample(w.worker_id, answers, processes) for w in workers),
                tasks=tuple(task for answer in answers.values() for task in answer.tasks),
                refs=tuple(relevant_refs(answers.values(), _awaited(processes.values()), self._shallow)),
                placement_groups=inventory.placement_groups,
                total=inventory.total,
                available=inventory.available,
                arrived=arrived,
            )
        )

    def _arrived_calls(self, answers: Iterable[CoreWorkerStats], sample: int) -> dict[str, int]:
        """Of the calls that seem to be queued at an actor: those known to be there, with their attempts."""
        running = {task_id for answer in answers for task_id in answer.running_task_ids}
        queued = {
            task.task_id
            for answer in answers
            for task in answer.tasks
            if task.kind == "ACTOR_TASK" and task.state == "SUBMITTED_TO_WORKER" and task.task_id not in running
        }
        if not queued:
            return {}
        arrived, failures = ask_arrived_calls(self.cluster, self._timeout_s(), sample)
        self._failures += failures
        return {task_id: attempt for task_id, attempt in arrived.items() if task_id in queued}

    def _see_processes(self, workers: Sequence[Worker], sample: int, deadline: float) -> list[Seen]:
        """What probes tell of the workers: of those on this host directly, of others through probes on their nodes."""
        by_node: dict[str, list[Worker]] = defaultdict(list)
        for worker in workers:
            by_node[worker.node_id].append(worker)
        here = [node for node in by_node if self._is_here(node)]
        there = [node for node in by_node if node not in here]
        remote = begin(lambda: self._see_remote(by_node, there, sample, deadline))
        local = self._see_local(by_node, here, sample, deadline)
        strangers = [node for node in here if _is_elsewhere(by_node[node], local)]
        self._elsewhere.update(strangers)
        local = [seen._replace(nodes=[node for node in seen.nodes if node not in strangers]) for seen in local]
        return [*local, *remote.result(), *self._see_remote(by_node, strangers, sample, deadline)]

    def _see_local(
        self, by_node: dict[str, list[Worker]], nodes: list[str], sample: int, deadline: float
    ) -> list[Seen]:
        """Also here nodes that were given up are not asked again."""
        nodes = [node for node in nodes if node not in self._given_up]
        workers = [worker for node in nodes for worker in by_node[node]]
        if not workers:
            return []
        self._progress(f"reading {len(workers)} processes here")
        began = time.monotonic()
        options = self._wire_options(deadline)
        wanted = [with_environment(target) for target in targets(workers)]
        reading = begin(lambda: self._local.sample(wanted, options))
        answer = within(reading, deadline + OVERRUN_S - began)
        if answer is None:
            self._given_up.update(nodes)
            reason, elapsed_s = "its probe took too long", round(time.monotonic() - began, 2)
            self._failures += [
                Failure(
                    stage="node probe",
                    reason=reason,
                    cause="timeout",
                    node_id=node,
                    elapsed_s=elapsed_s,
                    sample=sample,
                )
                for node in nodes
            ]
            return []
        try:
            return [Seen(nodes, validated(answer))]
        except MalformedAnswer:
            self._failures += [_node_failure(node, MALFORMED, time.monotonic() - began, sample) for node in nodes]
            return []

    def _see_remote(
        self, by_node: dict[str, list[Worker]], nodes: list[str], sample: int, deadline: float
    ) -> list[Seen]:
        """Nodes whose probe failed once are not asked again: their failure is known and may have taken long."""
        nodes = [node for node in nodes if node not in self._given_up]
        if not nodes:
            return []
        if self._remote is None:
            self._remote = RemoteProbes(self.cluster)
        began, asked_at = time.monotonic(), time.time()
        seen: list[Seen] = []
        wanted = {node: targets(by_node[node]) for node in nodes}
        raylets = {node: address for node, address in self._inventory.raylets.items() if node in wanted}
        answers = self._remote.sample(wanted, self._wire_options(deadline), raylets, deadline)
        for done, (node, result) in enumerate(answers, 1):
            self._progress(f"{done} of {len(nodes)} other nodes answered")
            if isinstance(result, NodeFailure):
                self._given_up.add(node)
                self._failures.append(_node_failure(node, result, time.monotonic() - began, sample))
            else:
                seen.append(Seen([node], result, ahead_s(result["clock"], asked_at, time.time())))
        return seen

    def _take_in(self, seen: list[Seen], workers: Sequence[Worker], sample: int) -> dict[str, Process]:
        """The processes of these workers by worker id; also keeps what failed with them."""
        node_of = {worker.worker_id: worker.node_id for worker in workers}
        processes: dict[str, Process] = {}
        for nodes, answer, clock_ahead_s in seen:
            try:
                taken, failures = self._assembly.add(nodes, answer, sample, node_of, clock_ahead_s)
            except MalformedAnswer:
                self._failures += [_node_failure(node, MALFORMED, 0.0, sample) for node in nodes]
                continue
            processes.update(taken)
            of_these = [f for f in failures if node_of.get(f.worker_id or "") in nodes]
            self._failures += [msgspec.structs.replace(f, node_id=node_of[f.worker_id or ""]) for f in of_these]
        return processes

    def _ask_agents(self, workers: Sequence[Worker], processes: dict[str, Process], sample: int) -> None:
        """Completes the processes by what Ray's agents tell of those that are there and could not be read."""
        of_processes = (f for f in self._failures if f.sample == sample and f.stage == "process")
        wrong = {failure.worker_id for failure in of_processes}
        unread = [w for w in workers if w.worker_id not in wrong and not _has_threads(processes.get(w.worker_id))]
        if unread and not self._options.pauses:  # an agent's py-spy pauses the process that it reads
            self._suggest_pause(unread, sample)
        elif unread:
            self._progress(f"asking Ray's agents for {len(unread)} processes")
            answer, failures = self._agents.stacks_of(unread, self._inventory.jobs, self._deadline, sample)
            self._failures += [f for f in failures if f.worker_id or f.node_id not in self._given_up]
            for worker_id, told in self._assembly.add([], answer, sample)[0].items():
                known = processes.get(worker_id, told)
                processes[worker_id] = msgspec.structs.replace(
                    known, threads=told.threads, access=told.access, paused_ms=told.paused_ms
                )
        whole = (w.worker_id for w in workers if _is_whole(processes.get(w.worker_id)))
        self._shallow |= {worker.worker_id for worker in workers} - {*whole}

    def _suggest_pause(self, unread: Sequence[Worker], sample: int) -> None:
        """Adds to the failures of unread processes, where there is an agent, that it can read them with a pause."""
        nodes = self._agents.present_on({worker.node_id for worker in unread}, self._timeout_s())
        workers = {worker.worker_id for worker in unread if worker.node_id in nodes}
        self._failures = [
            _with_pause_as_remedy(failure)
            if failure.sample == sample and _may_be_read_by_agent(failure, workers, nodes)
            else failure
            for failure in self._failures
        ]

    def _wire_options(self, deadline: float) -> wire.Options:
        return {
            "native": self._options.native,
            "locals": self._options.locals,
            "pause": self._options.pauses,
            "children": not self._samples,
            "deadline_s": max(0.1, deadline - time.monotonic()),
            "thread_context": within(self._thread_context, self._deadline - time.monotonic()),
        }

    def _is_here(self, node_id: str) -> bool:
        """Whether the node's processes are, to all appearances, this host's."""
        ips = {node.ip for node in self._inventory.nodes if node.node_id == node_id}
        return node_id not in self._elsewhere and bool(ips & own_addresses())

    def _is_own(self, worker: Worker) -> bool:
        """Whether the worker is one of dstack's own, as far as is known yet."""
        is_own_driver = worker.is_driver and (worker.ip, worker.pid) in self._own_drivers
        return is_own_driver or self._job_of.get(worker.worker_id) in self._own_jobs

    def _note_jobs(self, inventory: Inventory, answers: dict[str, CoreWorkerStats], sample: int) -> None:
        """Learns for whom each worker works. One that was idle when asked may be anybody's by now, even our probe's."""
        idle = [w for w in inventory.workers if w.worker_id in answers and answers[w.worker_id].job_id is None]
        again = ask_core_workers(idle, self.cluster.metadata, self._timeout_s(), sample)[0] if idle else {}
        for worker_id, answer in {**answers, **again}.items():
            self._job_of[worker_id], self._actor_of[worker_id] = answer.job_id, answer.actor_id
        self._note_own(inventory, {*self._job_of.values()})

    def _note_own(self, inventory: Inventory, job_ids: Iterable[str | None] = ()) -> None:
        """Learns which jobs are dstack's own, also those that began after the inventory was taken."""
        listed = {job.job_id for job in inventory.jobs} | inventory.own_jobs
        if {job_id for job_id in job_ids if job_id} - listed:
            with contextlib.suppress(ClusterError):
                inventory = take_inventory(self.cluster, self._timeout_s())
        self._own_jobs |= inventory.own_jobs
        self._own_drivers |= inventory.own_drivers

    def _note_ended(self, sample: int) -> None:
        """Finds the workers that ended while they were to be looked at: they are not unobserved, they are not there."""
        failures = [failure for failure in self._failures if failure.sample == sample and failure.worker_id]
        if not failures:
            return
        self._ended |= {f.worker_id for f in failures if f.stage == "process" and f.cause == "ended"}
        with contextlib.suppress(ClusterError):
            alive = {w.worker_id for w in take_inventory(self.cluster, self._timeout_s(), sample).workers}
            self._ended |= {failure.worker_id for failure in failures} - alive

    def _with_ids(self, worker: Worker) -> Worker:
        ids = {"job_id": self._job_of.get(worker.worker_id), "actor_id": self._actor_of.get(worker.worker_id)}
        return msgspec.structs.replace(worker, **ids)


def _worker_sample(worker_id: str, answers: dict[str, CoreWorkerStats], processes: dict[str, Process]) -> WorkerSample:
    answer = answers.get(worker_id)
    return WorkerSample(
        worker_id=worker_id,
        running_task_ids=answer.running_task_ids if answer else None,
        held=answer.held if answer else {},
        process=processes.get(worker_id),
    )


def _awaited(processes: Iterable[Process]) -> set[str]:
    return {ref for process in processes for call in process.calls() for ref in call.refs}


def _owners(samples: Iterable[Sample]) -> set[str]:
    """The workers that own what somebody waits for."""
    processes = (worker.process for sample in samples for worker in sample.workers if worker.process)
    return {owner for process in processes for call in process.calls() for owner in call.owners}


def _has_threads(process: Process | None) -> bool:
    return process is not None and bool(process.threads)


def _is_whole(process: Process | None) -> bool:
    """Whether it was read what its threads wait for, as far as that can be read."""
    return process is not None and bool(process.threads) and process.access == "memory"


def _is_elsewhere(workers: list[Worker], local: list[Seen]) -> bool:
    """Whether no process of a node was found here, and one is in another PID namespace, as in a container."""
    failures = (failure for seen in local for failure in seen.answer["failures"] if failure["stage"] == "process")
    causes = {failure.get("worker_id"): failure["cause"] for failure in failures}
    missing = [causes.get(worker.worker_id) for worker in workers]
    return all(missing) and "namespace" in missing


def _may_be_read_by_agent(failure: Failure, workers: set[str], nodes: set[str]) -> bool:
    """Whether it says why a process was not read on a node whose agent may be able to."""
    if failure.stage == "stacks":
        return failure.worker_id in workers and failure.cause in ("permission", "missing")
    return failure.stage == "node probe" and failure.node_id in nodes and failure.cause in ("timeout", "ended", "other")


def _with_pause_as_remedy(failure: Failure) -> Failure:
    remedy = (
        f"{failure.remedy} Or add --pause: {PAUSED_BY_AGENT}" if failure.remedy else f"Add --pause: {PAUSED_BY_AGENT}"
    )
    return msgspec.structs.replace(failure, remedy=remedy)


def _node_failure(node_id: str, why: NodeFailure, elapsed_s: float, sample: int) -> Failure:
    return Failure(
        stage="node probe",
        reason=why.reason,
        cause=why.cause,
        remedy=why.remedy,
        node_id=node_id,
        elapsed_s=round(elapsed_s, 2),
        sample=sample,
    )
