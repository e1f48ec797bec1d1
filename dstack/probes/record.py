"""What was observed of one cluster so far, from which snapshots are made."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

import dstack
from dstack.model import BlockedCall, EnvironmentSetup, Failure, Process, Sample, Snapshot, TaskTimes
from dstack.probes.answers import MalformedAnswer
from dstack.probes.assemble import Assembly
from dstack.probes.clocks import clock_notes
from dstack.probes.connect import Cluster
from dstack.probes.control_plane import Inventory, client_notes
from dstack.probes.liveness import Liveness
from dstack.probes.node import wire


@dataclass
class Record:
    """The samples, what failed, and when tasks entered their states as soon as that is known."""

    began: float = field(default_factory=time.monotonic)
    taken_at: float = field(default_factory=time.time)
    assembly: Assembly = field(default_factory=Assembly)
    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    task_times: Future[dict[str, TaskTimes]] | None = None
    setups: dict[tuple[str, int], EnvironmentSetup] = field(default_factory=dict)

    def failures_of(self, sample: int) -> list[Failure]:
        """What failed in one sample."""
        return [failure for failure in self.failures if failure.sample == sample]

    def add_setups(self, answer: wire.Answer) -> None:
        """Adds the installations that a node's probe has found; probes of one host may find the same."""
        for setup in map(_setup, answer.get("setups", ())):
            self.setups[setup.node_id, setup.pid] = setup

    def since_began_s(self, at: float) -> float:
        """The time from the start of the snapshot to a ``time.monotonic()``."""
        return round(at - self.began, 4)

    def snapshot(self, cluster: Cluster, inventory: Inventory, liveness: Liveness) -> Snapshot:
        """All of it; waits for the times of tasks, if they were asked for."""
        nodes = tuple(map(self.assembly.with_host, inventory.nodes))
        return Snapshot(
            dstack_version=dstack.__version__,
            taken_at=self.taken_at,
            address=cluster.address,
            ray_version=cluster.ray_version,
            autoscaler=inventory.autoscaler,
            nodes=nodes,
            jobs=inventory.jobs,
            actors=inventory.actors,
            workers=tuple(map(liveness.with_ids, liveness.present(inventory.workers))),
            gone_workers=liveness.gone_among(_owners(self.samples)),
            frames=self.assembly.frames,
            stacks=self.assembly.stacks,
            sources=self.assembly.sources,
            samples=tuple(self.samples),
            environment_setups=tuple(self.setups.values()),
            task_times=self.task_times.result() if self.task_times else {},
            failures=liveness.concern(self.failures, inventory.workers),
            notes=(*cluster.notes, *client_notes(inventory.jobs), *clock_notes(nodes)),
            total_s=round(time.monotonic() - self.began, 3),
        )


def _setup(data: wire.SetupData) -> EnvironmentSetup:
    """Its checked value. Raises :class:`MalformedAnswer`."""
    try:
        return msgspec.convert(data, EnvironmentSetup)
    except msgspec.ValidationError as error:
        raise MalformedAnswer from error


def awaited_refs(processes: Iterable[Process]) -> set[str]:
    """The refs that threads and coroutines of these processes, and of their children, wait for."""
    everybody = (one for process in processes for one in (process, *process.children))
    return {ref for call in _calls(everybody) for ref in call.refs}


def waiting_children(samples: Iterable[Sample]) -> bool:
    """Whether a child process waits for something that can be known: then its wait needs a second reading."""
    processes = (worker.process for sample in samples for worker in sample.workers if worker.process)
    children = (child for process in processes for child in process.children)
    return any(
        call.child_pids or call.threads or call.all_of or (child.is_cut_off and call.refs)
        for child in children
        for call in child.calls()
    )


def _owners(samples: Iterable[Sample]) -> set[str]:
    """The workers that own the refs that are waited for."""
    processes = (worker.process for sample in samples for worker in sample.workers if worker.process)
    return {owner for call in _calls(processes) for owner in call.owners}


def _calls(processes: Iterable[Process]) -> Iterable[BlockedCall]:
    return (call for process in processes for call in process.calls())
