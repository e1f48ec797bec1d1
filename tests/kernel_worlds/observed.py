"""What a probe observes of a world, made from its description without any process."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from msgspec import structs

from dstack.call_sites import KERNEL, LOCK, PROCESS_LOCK, THREAD_JOIN, WAITPID
from dstack.model.snapshot import Sample, Snapshot, WorkerSample
from dstack.observed.calls import (
    Call,
    Children,
    End,
    EndKind,
    Executions,
    Holder,
    KernelObjects,
    LostOwner,
    Need,
    ProcessObject,
)
from dstack.observed.processes import Frame, Process, Thread
from tests.kernel_worlds.judge import snapshot_of, worker_id_of
from tests.kernel_worlds.stage import Stage
from tests.kernel_worlds.world import IN_PROCESS, MOVES, OF_CHILDREN, OF_FAMILY, ON_WIRES, SHORT_S, Action, Wire, World

FRAME = Frame(function="main", file="/srv/app/main.py", line=1)
KINDS: dict[Wire, EndKind] = {"pipe": "pipe", "unix": "Unix socket", "tcp": "TCP", "backlog": "TCP"}
ASLEEP = {"sleep", "work", "feed", "drain", "watch file"}


class ObservedWorld:
    """Two samples of a world in which nothing happened meanwhile, except in loops that wake more often than a second.

    The ``hidden`` processes could not be read.
    """

    def __init__(self, world: World, hidden: Collection[int] = ()) -> None:
        self._world = world
        self._hidden = hidden
        self.stage = Stage(world)
        for number, process in enumerate(world.processes):
            pid = self.stage.pids[number] = 1000 * (number + 1)
            self.stage.tids.update({(number, thread): pid + thread for thread in range(len(process.threads))})

    def snapshot(self) -> Snapshot:
        """The snapshot with both samples."""
        found = snapshot_of(self.stage, map(self._sample, (0, 1)), 1.7e9)
        return structs.replace(found, frames=(FRAME,), stacks=((0,), ()))

    def _sample(self, number: int) -> Sample:
        drivers = self._world.drivers()
        workers = (
            WorkerSample(
                worker_id=worker_id_of(one),
                running_task_ids=(),
                process=None if one in self._hidden else self._driver(one, number),
            )
            for one in drivers
        )
        return Sample(began_s=1.5 * number, ended_s=1.5 * number + 0.5, workers=tuple(workers))

    def _driver(self, driver: int, sample: int) -> Process:
        numbers = range(len(self._world.processes))
        below = [one for one in numbers if one != driver and self._world.driver_of(one) == driver]
        children = tuple(self._process(one, sample) for one in below if one not in self._hidden)
        process = self._process(driver, sample)
        return replace(process, children=children, children_left_out=len(below) - len(children))

    def _process(self, number: int, sample: int) -> Process:
        process = self._world.processes[number]
        threads = tuple(self._thread((number, one), action, sample) for one, action in enumerate(process.threads))
        computes = any(action.does == "compute" for action in process.threads)
        return Process(
            pid=self.stage.pids[number],
            started_at=1.7e9 - 60,
            parent_pid=None if process.parent is None else self.stage.pids[process.parent],
            cpu_s=1.5 * sample * computes,
            threads=threads,
        )

    def _thread(self, thread: tuple[int, int], action: Action, sample: int) -> Thread:
        is_native = self._world.processes[thread[0]].how in ("cat", "sleep")
        is_quick = (action.every_s < 1 and action.does in ASLEEP - {"sleep"}) or action.timeout_s == SHORT_S
        return Thread(
            os_thread_id=self.stage.tids[thread],
            name="python",
            stack=1 if is_native else 0,
            role="user",
            on_cpu=action.does == "compute",
            still=action.does != "compute",
            sleeps=action.does in ASLEEP,
            sleep_left_s=500.0 if action.does in ASLEEP else None,
            slices=10 + sample * (is_quick or action.does == "compute" or self._is_fed(thread)),
            written_bytes=sample * (is_quick and action.does in ("work", "feed")),
            call=self._call(thread, action),
        )

    def _is_fed(self, thread: tuple[int, int]) -> bool:
        """Whether another thread moves it now and then."""
        return any(
            other.does in ("feed", "drain") and other.every_s < 1 and self._meets(other, self._world.action(thread))
            for other in map(self._world.action, self._world.threads())
        )

    @staticmethod
    def _meets(mover: Action, waiter: Action) -> bool:
        return any((wire, 1 - side) in waiter.ends for wire, side in mover.ends)

    # Calls

    def _call(self, thread: tuple[int, int], action: Action) -> Call | None:
        if action.does == "timer":
            need = KernelObjects(system_call="read", ends=(End(what="timer"),))
            return Call(site=KERNEL.id, frame=0, need=need, timeout_s=600.0)
        if action.does in MOVES | ASLEEP and action.does != "terminal":
            return None
        site, needs = self._need(thread, action)
        return Call(site=site, frame=0, need=needs, timeout_s=action.timeout_s)

    def _need(self, thread: tuple[int, int], action: Action) -> tuple[str, Need]:
        process, _ = thread
        if action.does in OF_CHILDREN:
            return WAITPID.id, Children(pids=(self.stage.pids[action.other],))
        if action.does in OF_FAMILY:
            return PROCESS_LOCK.id, ProcessObject(object_id=hex(process + 1))
        if action.does == "join thread":
            return THREAD_JOIN.id, Executions(threads=(self.stage.tids[process, action.other],))
        if action.does == "inherited lock":
            is_lost = action.other == 0 or len(self._world.processes[process].threads) == 1
            return LOCK.id, LostOwner(object_id="0x1") if is_lost else ProcessObject(object_id="0x1")
        if action.does in IN_PROCESS:
            return "threading.Event.wait", ProcessObject(object_id=hex(self.stage.tids[thread]))
        return KERNEL.id, self._kernel_objects(process, action)

    def _kernel_objects(self, process: int, action: Action) -> KernelObjects:
        ends = tuple(self._ends(process, action))
        return KernelObjects(system_call="poll", ends=ends)

    def _ends(self, process: int, action: Action) -> Iterator[End]:
        if action.does == "flock":
            holders = self._holders(self._world.lock_holders[action.other])
            yield End(what="file lock", identity=f"/lock{action.other}", holders=holders)
        elif action.does in ON_WIRES:
            for wire, side in action.ends:
                channel = self._world.channels[wire]
                yield End(
                    what=KINDS[channel.kind],
                    identity=f"{wire}:{side}",
                    is_write=side in channel.full_from and action.does != "receive",
                    holders=self._holders(sorted(channel.holders[1 - side])),
                )
        elif action.does == "accept":
            yield End(what="TCP", state="listening")
        else:
            yield End(what="terminal" if action.does == "terminal" else "signal")

    def _holders(self, processes: list[int]) -> tuple[Holder, ...]:
        others = {number for number in processes if self._world.processes[number].how == "outside"}
        return tuple(Holder(pid=self.stage.pids[one], name="other" if one in others else "") for one in processes)
