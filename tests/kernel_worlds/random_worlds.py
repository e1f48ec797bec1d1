"""Random worlds, each by a seed."""

from __future__ import annotations

from random import Random

from tests.kernel_worlds.world import LONG_S, SHORT_S, Action, Channel, Does, End, How, Process, Wire, World

CHILDREN: tuple[How, ...] = ("fork", "fork", "multiprocessing", "popen", "cat", "sleep")
PROGRAMS = ("cat", "sleep", "outside")


def random_world(seed: int) -> World:
    """The world of a seed."""
    return _Maker(seed).world


class _Maker:
    """Makes one world: processes first, then what each of their threads does."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.world = World(seed)
        self._moving = self._random.choice([0.0, 0.0, 0.0, 0.1, 0.3])
        self._outside = self._random.choice([0.0, 0.0, 0.0, 0.0, 0.15])
        self._add_processes()
        for number, one in enumerate(self.world.processes):
            self._act(number, one)

    def _add_processes(self) -> None:
        processes = self.world.processes
        for _ in range(self._random.choice([1, 2, 2, 2, 3, 3, 4])):
            driver = len(processes)
            processes.append(Process("driver"))
            for _ in range(self._random.choice([0, 0, 0, 1, 1, 2])):
                self._add_child(driver)
        if self._outside:
            processes.append(Process("outside"))

    def _add_child(self, driver: int) -> None:
        processes = self.world.processes
        able = [n for n in range(driver, len(processes)) if processes[n].how not in PROGRAMS]
        parent = self._random.choice([driver, driver, *able])
        how = self._random.choice(CHILDREN)
        if how == "sleep" and self._moving == 0:
            how = "cat"
        is_fork = how in ("fork", "multiprocessing")
        shares = is_fork and (processes[parent].parent is None or processes[parent].shares)
        processes.append(Process(how, parent, shares=shares))

    def _act(self, number: int, process: Process) -> None:
        if process.how in ("sleep", "outside"):
            process.threads.append(Action("sleep"))
            return
        if process.how == "cat":
            process.threads.append(Action("receive", (self._new_end(number, self._random.choice(["pipe", "unix"])),)))
            return
        for _ in range(1 if self._random.random() < 0.75 else 2):
            process.threads.append(self._action(number))
        if len(process.threads) == 2 and self._random.random() < 0.3:
            process.threads[0] = Action("join thread", other=1)

    def _action(self, number: int) -> Action:
        if self._random.random() < self._moving:
            return self._move(number)
        if self._random.random() < self._outside:
            return Action(self._random.choice(["accept", "signal", "watch file"]))
        waits = [self._on_wire] * 8 + [self._on_lock] * 3 + [self._in_process]
        if self.world.children(number):
            waits += [self._on_child] * 4
        if len(self.world.family(self.world.driver_of(number))) > 1 and self._is_of_family(number):
            waits += [self._in_family] * 2
        return self._random.choice(waits)(number)

    def _is_of_family(self, number: int) -> bool:
        return number in self.world.family(self.world.driver_of(number))

    # Movers

    def _move(self, number: int) -> Action:
        every_s = self._random.choice([0.3, 3.0])
        able: list[Action] = []
        for wire, channel in enumerate(self.world.channels):
            for side in (0, 1):
                if number in channel.holders[side]:
                    if side not in channel.full_from and (channel.kind != "pipe" or side == 1):
                        able.append(Action("feed", ((wire, side),), every_s=every_s))
                    if 1 - side in channel.full_from:
                        able.append(Action("drain", ((wire, side),), every_s=every_s))
        if able and self._random.random() < 0.6:
            return self._random.choice(able)
        return Action(self._random.choice(["sleep", "sleep", "timer", "terminal", "compute", "work"]), every_s=every_s)

    # Waits

    def _on_wire(self, number: int) -> Action:
        does: Does = self._random.choice(["receive", "receive", "receive", "send", "poll", "select", "epoll"])
        if does in ("receive", "send"):
            end = self._end(number, is_full=does == "send")
            return Action(does, (end,))
        ends = {
            self._end(number, is_full=self._random.random() < 0.2) for _ in range(self._random.choice([1, 1, 2, 3]))
        }
        return Action(does, tuple(sorted(ends)), timeout_s=self._timeout())

    def _timeout(self) -> float | None:
        return self._random.choice([LONG_S, SHORT_S]) if self._random.random() < self._moving else None

    def _end(self, number: int, is_full: bool) -> End:
        """An end of a process: one that it has already, or of a new wire."""
        own = [
            (wire, side)
            for wire, channel in enumerate(self.world.channels)
            for side in (0, 1)
            if number in channel.holders[side] and self._can_wait(channel, side, is_full)
        ]
        if own and self._random.random() < 0.3:
            return self._random.choice(own)
        return self._new_end(number, self._random.choice(["pipe", "pipe", "unix", "tcp"]), is_full)

    def _can_wait(self, channel: Channel, side: int, is_full: bool) -> bool:
        if is_full:
            return side in channel.full_from
        return 1 - side not in channel.full_from and (channel.kind != "pipe" or side == 0)

    def _new_end(self, number: int, kind: Wire, is_full: bool = False) -> End:
        everything = range(len(self.world.processes))
        others = [n for n in everything if n != number and self.world.processes[n].how not in PROGRAMS]
        at_other = {self._random.choice(others) if others and self._random.random() < 0.93 else number}
        if self._random.random() < 0.2:
            at_other.add(self._random.choice(everything))
        own = {number}
        if self._random.random() < 0.12:
            own.add(self._random.choice(everything))
        side = 1 if is_full else 0
        holders = (at_other, own) if is_full else (own, at_other)
        self.world.channels.append(Channel(kind, holders, {side} if is_full else set()))
        return len(self.world.channels) - 1, side

    def _on_lock(self, number: int) -> Action:
        others = [n for n, one in enumerate(self.world.processes) if n != number and one.how not in PROGRAMS]
        if not others:
            return self._on_wire(number)
        holder = self._random.choice(others)
        holders = [holder]
        forks = [n for n in self.world.children(holder) if self.world.processes[n].how == "fork"]
        if forks and self._random.random() < 0.3:
            holders.append(self._random.choice(forks))
        if number in holders:
            holders = [holder]
        self.world.lock_holders.append(holders)
        return Action("flock", other=len(self.world.lock_holders) - 1)

    def _on_child(self, number: int) -> Action:
        child = self._random.choice(self.world.children(number))
        how = self.world.processes[child].how
        if how == "multiprocessing":
            return Action("join", other=child)
        return Action("waitpid" if how == "fork" else "Popen.wait", other=child)

    def _in_family(self, number: int) -> Action:
        return Action(self._random.choice(["queue.get", "queue.put", "process lock"]))

    def _in_process(self, number: int) -> Action:
        process = self.world.processes[number]
        does: list[Does] = ["event"]
        if process.how == "fork" and not process.threads:
            does += ["inherited lock"] * 3
        chosen = self._random.choice(does)
        if chosen == "inherited lock" and process.parent is not None:
            of_parent = self.world.processes[process.parent].threads
            if all(one.does != "hold lock" for one in of_parent):
                of_parent.append(Action("hold lock"))
        return Action(chosen, other=self._random.choice([0, 1]))
