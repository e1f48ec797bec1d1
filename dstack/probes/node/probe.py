"""Samples the worker and driver processes of its node, and asks its core workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import psutil

from dstack.observed.ledgers import RecorderDump
from dstack.observed.node import Cause, Failure, NodeAnswer, RecordedRound, StartingWorker
from dstack.observed.processes import Process
from dstack.probes.node.core_worker_calls import AskingThread, CoreWorkers
from dstack.probes.node.kept_reading import are_alike
from dstack.probes.node.log_tails import LogFiles
from dstack.probes.node.node_figures import NodeFigures
from dstack.probes.node.outlines import DriverOutlines
from dstack.probes.node.process_reader import ProcessReader
from dstack.probes.node.process_values import ProcessValues
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.children import Families
from dstack.probes.node.procfs.open_files import KernelTables
from dstack.probes.node.procfs.proc import Birth
from dstack.probes.node.procfs.raylets import (
    WorkerProcess,
    environment_setups,
    log_folders,
    raylet_reports,
    raylets,
    unlisted_workers,
)
from dstack.probes.node.pyspy import PySpy, find_pyspy
from dstack.probes.node.recorder_dumps import RecorderDumps
from dstack.probes.node.sampling.sampler import Sampler
from dstack.probes.node.stacks.source_files import SourceFiles
from dstack.probes.node.stacks.table import StackTable
from dstack.probes.node.target_process import PortOwners, ProcessReading, TargetProcess
from dstack.probes.node.wire import DumpRequest, LogRequest, NodeRequest, ReadTarget, RecordOptions, SampleOptions

NO_OUTLINES: Mapping[str, str] = {}
PAUSED_AT_ONCE = 2
"""How many py-spy run at the same time. One thread reads memory: a second one would only prolong the readings."""
MAX_CHILDREN, MAX_CHILDREN_HERE = 16, 64
"""The most child processes that are read, of one process and on this node."""
MAX_STARTING = 64
"""The most starting workers that are read on this node."""
DENIED: tuple[Cause, ...] = ("permission", "missing", "timeout")
"""Causes why a process is not read that do not depend on how far its start is."""
CHILDREN_SHARE = 0.5
"""The share of the remaining time for children, so that slow ones do not delay the answer about workers."""


@dataclass(frozen=True)
class Others:
    """The worker processes of nodes besides those ``named``: their pids by worker id."""

    node_ids: Collection[str] = ()
    named: Mapping[str, int] = field(default_factory=dict)


def _others(request: NodeRequest) -> Others:
    """The worker processes of its nodes besides those that the request names."""
    named = {one["worker_id"]: one["pid"] for one in (*request["workers"], *request["targets"])}
    return Others(node_ids=request["nodes"], named=named)


class NodeProbe:
    """Samples processes of this node, and keeps what it has learned of them for the next sample.

    ``stubs`` are those of :class:`CoreWorkers`. ``is_guest`` says that it runs in a worker of the cluster, which it
    then leaves out. ``prepare`` adds the environment to a target that the probe has found itself.
    """

    def __init__(
        self,
        stubs: Callable[[], Any] | None = None,
        *,
        is_guest: bool = False,
        prepare: Callable[[ReadTarget], ReadTarget] | None = None,
    ) -> None:
        self._core_workers = CoreWorkers(stubs)
        self._prepare = prepare or (lambda target: target)
        self._own_pid = os.getpid() if is_guest else None
        path = find_pyspy()
        self._reader = ProcessReader(PySpy(path) if path else None)
        self._verified: dict[int, tuple[Birth, int]] = {}
        self._files = SourceFiles()
        self._outlines = DriverOutlines()
        self._dumps = RecorderDumps()
        self._sampler = Sampler(self._reader)
        self._figures = NodeFigures()
        self._last_round: dict[str, list[ProcessReading]] = {}

    def close(self) -> None:
        """Ends what still records, and closes the connections to core workers."""
        self._sampler.close()
        self._core_workers.close()

    def needs_pyspy_for(self) -> str:
        """The machine that a py-spy for this node must be built for; empty if the node has one."""
        return "" if self._reader.tool else proc.machine()

    def equip(self, binary: bytes) -> None:
        """Provide a py-spy, as the bytes of its executable, to a node without one."""
        self._reader.tool = PySpy.from_bytes(binary)

    def begin_snapshot(self) -> None:
        """Forgets what holds for one snapshot only, and the processes that have ended."""
        self._figures.begin_snapshot()
        self._files.begin_snapshot()
        self._outlines.begin_snapshot()
        self._reader.forget_ended()
        self._verified = {pid: known for pid, known in self._verified.items() if psutil.pid_exists(pid)}

    def answer(self, request: NodeRequest) -> NodeAnswer:
        """One sample of this node, whose core workers are asked in a thread while its processes are read."""
        if request["is_first"]:
            self.begin_snapshot()
        options, targets = request["options"], request["targets"]
        if "kept" in options:
            return self._round(request)
        asking = AskingThread(self._core_workers, request, time.monotonic() + options["deadline_s"])
        others = _others(request) if options.get("starting") else None
        if targets or options.get("setups_of") or options.get("tcp_ends") or others:
            answer = self.sample(
                targets,
                options,
                others,
                logs=request.get("logs"),
                outlines=request.get("outlines", {}),
                dumps=request.get("dumps"),
            )
        else:
            host = self._figures.between_polls(options["deadline_s"]) if options.get("figures") else None
            answer = NodeAnswer(clock=(time.time(), time.time()), host=host)
        answer = asking.finish(answer)
        return replace(answer, clock=(answer.clock[0], time.time()))

    def _round(self, request: NodeRequest) -> NodeAnswer:
        """A round of a profile: it asks the owners and new workers, and at once each worker whose process has changed.

        So a process and the reply of its core worker are of one moment, and no reply is older than what stays.
        """
        options, by_id = request["options"], {one["worker_id"]: one for one in request["workers"]}
        known = set(options["kept"]).difference(options.get("owners", ()))
        first = [one for worker_id, one in by_id.items() if worker_id not in known]
        deadline = time.monotonic() + options["deadline_s"]
        asking = AskingThread(self._core_workers, {**request, "workers": first, "targets": []}, deadline, more=True)

        def ask(process: TargetProcess) -> None:
            last = self._last_round.get(process.worker_id, ())
            if process.worker_id in by_id and not are_alike(last[:1], [process.reading]):
                asking.also(by_id[process.worker_id])

        answer = asking.finish(self.sample(request["targets"], options, _others(request), ask))
        return replace(answer, clock=(answer.clock[0], time.time()))

    def sample(
        self,
        targets: Sequence[ReadTarget],
        options: SampleOptions,
        others: Others | None = None,
        note: Callable[[TargetProcess], None] = lambda _: None,
        logs: LogRequest | None = None,
        outlines: Mapping[str, str] = NO_OUTLINES,
        dumps: DumpRequest | None = None,
    ) -> NodeAnswer:
        """One sample of the target processes, and of the ``others`` that are starting, perhaps with ``logs``.

        ``note`` gets each target. ``outlines`` are the jobs of drivers whose programs are read, by worker id. ``dumps``
        of flight recorders are read if they are asked for.
        """
        began_at, deadline = time.time(), time.monotonic() + options["deadline_s"]
        self._figures.begin()
        targets = [target for target in targets if target["pid"] != self._own_pid]
        families = Families([target["pid"] for target in targets])
        ports = [target["port"] for target in targets]
        pids = [target["pid"] for target in targets]
        scans_host = options.get("reach", True)  # the first sample suspects, the second one proves
        tables = KernelTables(lambda: families.with_all_below(pids), ports, scans_host=scans_host)
        processes = [TargetProcess(target, families, tables) for target in targets]
        owners = PortOwners()
        identified = self._identified(processes, owners)
        self._figures.begin_disks()
        self._read_all(identified, options, deadline, note)
        of_nodes = list(raylets(others.node_ids, families.started)) if others and others.node_ids else []
        starting = self._starting(of_nodes, others, families, tables, owners) if others else []
        self._read_all([process for _, process in starting if process.figures], options, deadline)
        if options["children"]:
            children = self._identified(_find_children(identified), owners)
            self._read_all(children, options, time.monotonic() + CHILDREN_SHARE * (deadline - time.monotonic()))
        setups = environment_setups(options["setups_of"]) if options.get("setups_of") else ()
        ends = tables.tcp_ends(options["tcp_ends"]) if options.get("tcp_ends") else {}
        unchanged = self._unchanged(processes, options["kept"]) if "kept" in options else ()

        def dumped(table: StackTable) -> Iterator[RecorderDump]:
            users = [*(process.pid for process in identified), *(pid for _, pid in of_nodes)]
            return self._dumps.read(users, dumps, table, deadline) if dumps else iter(())

        answer = self._answer(processes, unchanged, starting, began_at, deadline, dumped)
        reports = tuple(raylet_reports(of_nodes, families.started))
        programs = tuple(self._outlines.of_drivers(self._drivers(identified, outlines)))
        answer = replace(answer, setups=tuple(setups), tcp_ends=ends, raylets=reports, outlines=programs)
        if logs is None:
            return answer
        files = LogFiles(log_folders(of_nodes), deadline)
        self._read_logs(files, logs, families, owners)
        for one in answer.starting:
            files.read_worker(one.worker_id, one.process.pid, families.below(one.process.pid))
        for node_id in others.node_ids if others and logs["of_nodes"] else ():
            files.read_node(node_id)
        return replace(answer, log_tails=tuple(files.tails))

    def _drivers(
        self, processes: Sequence[TargetProcess], jobs: Mapping[str, str]
    ) -> Iterator[tuple[int, str, set[str]]]:
        """The drivers with their jobs, and the user's files that their stacks show."""
        for process in processes:
            if process.worker_id in jobs:
                frames = [frame for one in process.reading.threads for frame in one.thread.frames]
                cwd = proc.working_directory(process.pid)
                files = {os.path.join(cwd, one.position.file) for one in frames if self._reader.origins.is_user(one)}
                yield process.pid, jobs[process.worker_id], files

    def _read_logs(self, files: LogFiles, logs: LogRequest, families: Families, owners: PortOwners) -> None:
        """Read the logs of workers: of a process that is the expected one by its output, else by its id."""
        for one in logs["workers"]:
            process = TargetProcess(one["process"], families, KernelTables(tuple))
            if self._identified([process], owners):
                files.read_worker(process.worker_id, process.pid, families.below(process.pid))
            else:
                files.read_gone(one["node_id"], process.worker_id, process.pid)

    def record(self, targets: Sequence[ReadTarget], options: RecordOptions) -> RecordedRound:
        """One round of a recording of the target processes."""
        targets = [target for target in targets if target["pid"] != self._own_pid]
        families = Families()
        processes = [TargetProcess(target, families, KernelTables(tuple)) for target in targets]
        found = self._sampler.round(self._identified(processes, PortOwners()), options)
        failures = (failure for process in processes for failure in process.failures(process.problems))
        return replace(found, failures=tuple(failures))

    def _starting(
        self,
        of_nodes: Sequence[tuple[str, int]],
        others: Others,
        families: Families,
        tables: KernelTables,
        owners: PortOwners,
    ) -> list[tuple[WorkerProcess, TargetProcess]]:
        """The worker processes below the raylets of nodes that the request does not name, the first ones of them."""
        pids = {*others.named.values(), os.getpid()}
        found = unlisted_workers(of_nodes, others.named, pids, families.started) if of_nodes else iter(())
        first = list(islice(found, MAX_STARTING))
        processes = [TargetProcess(self._prepare(one.as_target()), families, tables) for one in first]
        self._identified(processes, owners)
        return list(zip(first, processes, strict=True))

    def _identified(self, processes: Sequence[TargetProcess], owners: PortOwners) -> list[TargetProcess]:
        """The processes that exist and are the expected ones."""
        for process in processes:
            with process.problems_of():
                process.identify(owners, self._verified)
            if process.figures:
                self._figures.note(process.pid, process.figures)
        return [process for process in processes if process.figures]

    def _read_all(
        self,
        processes: Sequence[TargetProcess],
        options: SampleOptions,
        deadline: float,
        note: Callable[[TargetProcess], None] = lambda _: None,
    ) -> None:
        """Read these processes; each stops at the deadline, and is noted when it was read."""
        pool = ThreadPoolExecutor(PAUSED_AT_ONCE if options["native"] or options["pause"] else 1)
        try:
            done = [pool.submit(self._read, process, options, deadline, note) for process in processes]
            for future in done:
                future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # an interruption does not wait for the rest

    def _read(
        self,
        process: TargetProcess,
        options: SampleOptions,
        deadline: float,
        note: Callable[[TargetProcess], None],
    ) -> None:
        with process.problems_of():
            process.reading = self._reader.read(process, process.request(options, deadline))
            process.problems += process.reading.problems
            if process.parent_pid is None:
                process.problems += self._reader.lost_pieces(process)
            note(process)

    def _unchanged(self, processes: Sequence[TargetProcess], kept: Collection[str]) -> list[str]:
        """The workers among those ``kept`` whose process is as in the last round; notes this round."""
        readings = {one.worker_id: [one.reading, *(child.reading for child in one.children)] for one in processes}
        known, self._last_round = self._last_round, readings
        return [one for one in kept if one in readings and one in known and are_alike(known[one], readings[one])]

    def _answer(
        self,
        processes: Sequence[TargetProcess],
        unchanged: Collection[str],
        starting: Sequence[tuple[WorkerProcess, TargetProcess]],
        began_at: float,
        deadline: float,
        dumped: Callable[[StackTable], Iterator[RecorderDump]],
    ) -> NodeAnswer:
        table = StackTable(self._reader.origins, self._files)
        host = self._figures.end(deadline)
        values = ProcessValues(table, self._figures)
        found: dict[str, Process] = {}
        failures: list[Failure] = []
        for process in processes:
            failures += process.failures(process.problems)
            for child in process.children:
                failures += child.failures([one for one in child.problems if one.stage == "stacks"])
            if process.figures and process.worker_id not in unchanged:
                found[process.worker_id] = values.process(process)
        of_starting, denied = _starting_workers(values, starting)
        of_files = tuple(dumped(table))
        return NodeAnswer(
            frames=tuple(table.frames),
            stacks=tuple(table.stacks),
            sources=table.sources,
            processes=found,
            failures=(*failures, *denied),
            host=host,
            starting=tuple(of_starting),
            clock=(began_at, time.time()),
            unchanged=tuple(unchanged),
            recorder_dumps=of_files,
        )


def _starting_workers(
    values: ProcessValues, starting: Sequence[tuple[WorkerProcess, TargetProcess]]
) -> tuple[list[StartingWorker], list[Failure]]:
    """The workers that are starting, and the failures of those that may not be read.

    One that has become ready meanwhile is left out, and one that has no readable Python yet.
    """
    found: list[StartingWorker] = []
    failures: list[Failure] = []
    for one, target in starting:
        denied = [problem for problem in target.problems if problem.cause in DENIED]
        process = values.process(target) if target.figures and not target.is_gone else None
        if process and (process.starting or denied):
            process = replace(process, starting=process.starting or "start")
            found.append(
                StartingWorker(worker_id=one.worker_id, node_id=one.node_id, process=process, job_id=one.job_id)
            )
            failures += target.failures(denied)
    return found, failures


def _find_children(processes: Sequence[TargetProcess]) -> list[TargetProcess]:
    """The children to read: the first ones of each process, and no more than the limit of the node."""
    found: list[TargetProcess] = []
    for process in processes:
        found += process.find_children(min(MAX_CHILDREN, MAX_CHILDREN_HERE - len(found)))
    return found
