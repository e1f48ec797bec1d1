"""Reads a staged world twice with the real probe, judges it with the real analysis, and compares with the truth."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.model.diagnosis import Diagnosis
from dstack.model.snapshot import Job, Node, Sample, Snapshot, Worker, WorkerSample
from dstack.model.vertex_keys import ChildThreadKey, Key, ThreadKey
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import ReadTarget
from dstack.probes.observations import Assembly
from tests.kernel_worlds.stage import Stage
from tests.kernel_worlds.world import World
from tests.sampling import OPTIONS

JOB = "01000000"
NODE = Node(node_id=f"{1:056x}", ip="127.0.0.1")
STUCK_KINDS = ("deadlock", "infeasible", "orphaned")


def worker_id_of(process: int) -> str:
    return f"{process + 1:056x}"


def snapshot_of(stage: Stage, samples: Iterable[Sample], taken_at: float) -> Snapshot:
    """The samples of a world as a snapshot, whose drivers are those of one job; it has no frames yet."""
    drivers = stage.world.drivers()
    workers = (
        Worker(
            worker_id=worker_id_of(one),
            node_id=NODE.node_id,
            ip=NODE.ip,
            port=0,
            pid=stage.pids[one],
            is_driver=True,
            job_id=JOB,
        )
        for one in drivers
    )
    return Snapshot(
        dstack_version="0",
        taken_at=taken_at,
        address="127.0.0.1:6379",
        ray_version="2.60.0",
        nodes=(NODE,),
        jobs=(Job(job_id=JOB, driver_pid=stage.pids[drivers[0]]),),
        workers=tuple(workers),
        samples=tuple(samples),
    )


class Reading:
    """The samples of one world, whose drivers are those of one job."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._assembly = Assembly()
        self._samples: list[Sample] = []
        self._began = time.monotonic()
        self._taken_at = time.time()
        self._probe = NodeProbe()
        self._probe.begin_snapshot()

    def sample(self) -> None:
        """Take a sample of all processes."""
        began_s = time.monotonic() - self._began
        drivers = self.stage.world.drivers()
        targets: list[ReadTarget] = [
            {"worker_id": worker_id_of(one), "pid": self.stage.pids[one], "port": 0, "is_driver": True}
            for one in drivers
        ]
        answer = self._probe.sample(targets, {**OPTIONS, "children": True})
        processes, failures = self._assembly.add([NODE.node_id], answer, len(self._samples) + 1)
        assert not failures, failures
        workers = tuple(
            WorkerSample(worker_id=one["worker_id"], running_task_ids=(), process=processes.get(one["worker_id"]))
            for one in targets
        )
        self._samples.append(Sample(began_s=began_s, ended_s=time.monotonic() - self._began, workers=workers))

    @property
    def age_s(self) -> float:
        """The time since the last sample."""
        return time.monotonic() - self._began - self._samples[-1].ended_s

    def snapshot(self) -> Snapshot:
        return replace(
            snapshot_of(self.stage, self._samples, self._taken_at),
            frames=self._assembly.frames,
            stacks=self._assembly.stacks,
        )


@dataclass
class Judgement:
    """The verdict on a world, the threads that it claims to be stuck, and those that are stalled."""

    world: World
    diagnosis: Diagnosis
    claimed: set[tuple[int, int]] = field(default_factory=set)
    listed: set[tuple[int, int]] = field(default_factory=set)

    @property
    def is_quiet(self) -> bool:
        return not self.world.is_active()

    @property
    def is_found(self) -> bool:
        """Whether threads that are stuck are reported."""
        if self.diagnosis.verdict in ("deadlock", "hang"):
            return not self.claimed.isdisjoint(self.world.stuck())
        is_listed = bool(self.diagnosis.outside) or not self.listed.isdisjoint(self.world.stuck())
        return self.diagnosis.verdict == "stalled" and is_listed

    def errors(self) -> Iterator[str]:
        """What is wrong by the truth."""
        if wrong := self.claimed & self.world.may_move():
            yield f"reported as stuck, but may move: {sorted(wrong)}"
        if self.diagnosis.verdict in ("deadlock", "hang") and not self.claimed:
            yield "an alarm without members"
        if self.diagnosis.verdict == "stalled" and self.world.is_active():
            yield "stalled, but a thread moves or will by a timer"

    def __str__(self) -> str:
        findings = [f"  {one.kind}: {one.summary}; {one.assumed}" for one in self.diagnosis.findings]
        outside = [f"  outside: {one.call} {one.kind} {one.count} line {one.line}" for one in self.diagnosis.outside]
        head = f"{self.diagnosis.verdict}: claimed {sorted(self.claimed)}, listed {sorted(self.listed)}"
        return "\n".join((str(self.world), head, *findings, *outside, *self.errors()))


def judged(stage: Stage, diagnosis: Diagnosis) -> Judgement:
    """What a diagnosis says about the threads of a world."""
    found = Judgement(stage.world, diagnosis)
    threads = {(stage.pids[one[0]], tid): one for one, tid in stage.tids.items()}
    pids = {worker_id_of(one): stage.pids[one] for one in stage.world.drivers()}
    for finding in diagnosis.findings:
        numbers = {
            one for key in (*finding.members, *finding.blocked_behind) if (one := threads.get(_place(key, pids)))
        }
        if finding.kind in STUCK_KINDS:
            found.claimed |= numbers
        elif finding.kind == "stalled":
            found.listed |= numbers
    return found


def _place(key: Key, pids: dict[str, int]) -> tuple[int, int]:
    """The pid and the id of the thread of a vertex; zeros for a helper."""
    if isinstance(key, ThreadKey):
        return pids[key.worker_id], key.os_thread_id
    return (key.pid, key.os_thread_id) if isinstance(key, ChildThreadKey) else (0, 0)


def judge(reading: Reading) -> Judgement:
    return judged(reading.stage, diagnose(reading.snapshot()))
