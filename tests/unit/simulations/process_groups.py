"""Small random clusters whose actors are ranks of process groups, and that can be run to their end.

Each rank runs a program: collectives on its groups, sends and receives, gets of other ranks'
programs or of a further call on them, and work of its own. The members' calls on a group pair up by their number, and
end only if all of them have the same kind. Some can end early: a root that has sent its data, members that have sent
theirs, an asynchronous call. The data of a broadcast are forwarded from rank to rank.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from hypothesis import strategies as st

from dstack.model.vertex_keys import Key
from dstack.observed.calls import ProcessGroup
from tests.unit.scenes import Call, Scene, SceneProcess, group_of

Kind = Literal[
    "all_reduce", "new_group", "broadcast", "gather", "scatter", "begin", "send", "recv", "get", "call", "work"
]
COLLECTIVES: tuple[Kind, ...] = ("all_reduce", "new_group", "broadcast", "gather", "scatter", "begin")
ENDED = -1


@dataclass(frozen=True)
class Op:
    """One step of a program; ``peer`` is the root, the other rank, or the rank whose program or call is awaited."""

    kind: Kind
    group: int = 0
    peer: int | None = None

    @property
    def is_communication(self) -> bool:
        """Whether the library ends the step without the program."""
        return self.kind in (*COLLECTIVES, "send", "recv")


@dataclass
class SimulatedCluster:
    """The programs of the ranks, and the number of the present step of each rank, or ENDED.

    A send ends at once where messages are ``buffered``, else when the other rank receives. The driver waits for all
    programs.
    """

    groups: list[tuple[int, ...]]
    programs: list[list[Op]]
    is_buffered: bool = False
    at: list[int] = field(default_factory=list)
    entered: dict[tuple[int, int], list[Op]] = field(default_factory=dict)
    sent: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at = [0] * len(self.programs)
        for rank in range(len(self.programs)):
            self._enter(rank)

    def op(self, rank: int) -> Op | None:
        """The present step of a rank."""
        return None if self.at[rank] == ENDED else self.programs[rank][self.at[rank]]

    def _enter(self, rank: int) -> None:
        if self.at[rank] >= len(self.programs[rank]):
            self.at[rank] = ENDED
        op = self.op(rank)
        if op is not None and op.kind in COLLECTIVES:
            kind: Kind = "all_reduce" if op.kind == "begin" else op.kind
            self.entered.setdefault((op.group, rank), []).append(Op(kind, op.group, op.peer))

    def can_end(self, rank: int) -> bool:
        """Whether the present step of a rank can end."""
        op = self.op(rank)
        if op is None:
            return False
        match op.kind:
            case "work" | "begin":
                return True
            case "get" | "call":
                return op.peer is not None and self.at[op.peer] == ENDED
            case "send":
                return self.is_buffered or self._receives_from(op.peer or 0, rank)
            case "recv":
                return any(self.sent.get((other, rank), 0) for other in self._senders(rank, op))
        return self._collective_can_end(rank, op)

    def _receives_from(self, rank: int, sender: int) -> bool:
        op = self.op(rank)
        return op is not None and op.kind == "recv" and op.peer in (None, sender) and not self.can_end(rank)

    def _senders(self, rank: int, op: Op) -> list[int]:
        return [other for other in range(len(self.programs)) if other != rank and op.peer in (None, other)]

    def _collective_can_end(self, rank: int, op: Op) -> bool:
        """Whether the members that the step needs have entered, all of them with the same kind."""
        number = len(self.entered[op.group, rank]) - 1
        members = self.groups[op.group]
        present = [r for r in members if len(self.entered.get((op.group, r), ())) > number]
        if len({self.entered[op.group, r][number] for r in present}) > 1:
            return False
        if op.kind == "gather":
            return rank != op.peer or len(present) == len(members)
        if op.kind == "scatter":
            return op.peer in present
        if op.kind == "broadcast":
            before = {r for r in members if members.index(r) < members.index(rank)}
            return rank == op.peer or {op.peer, *before} <= set(present)
        return len(present) == len(members)

    def end(self, rank: int) -> None:
        """Ends the present step of a rank, which enters its next step."""
        op = self.op(rank)
        assert op is not None
        if op.kind == "send" and op.peer is not None:
            self.sent[rank, op.peer] = self.sent.get((rank, op.peer), 0) + 1
        if op.kind == "recv":
            sender = next(other for other in self._senders(rank, op) if self.sent.get((other, rank), 0))
            self.sent[sender, rank] -= 1
        self.at[rank] += 1
        self._enter(rank)

    def possible(self) -> Iterator[int]:
        """The ranks whose steps can end now."""
        return (rank for rank in range(len(self.programs)) if self.can_end(rank))

    def run(self, order: random.Random, steps: int = 1000) -> None:
        """Ends this many steps, or all that can end, in random order."""
        for _ in range(steps):
            possible = list(self.possible())
            if not possible:
                return
            self.end(order.choice(possible))

    def settle(self, order: random.Random) -> None:
        """Ends all steps that the library ends by itself within a moment."""
        while possible := [rank for rank in self.possible() if (op := self.op(rank)) and op.is_communication]:
            self.end(order.choice(possible))

    def unfinished(self) -> set[int]:
        """The ranks whose programs have not ended."""
        return {rank for rank in range(len(self.programs)) if self.at[rank] != ENDED}

    def is_in_doubt(self) -> bool:
        """Whether a rank waits in a call that all members seem to have entered, though some are at another number."""
        return any(self._seems_complete(rank) for rank in self.unfinished())

    def _seems_complete(self, rank: int) -> bool:
        op = self.op(rank)
        if op is None or not op.is_communication:
            return False
        members = [r for r in self.groups[op.group] if r != rank]
        if op.kind in ("send", "recv"):
            opposite = "recv" if op.kind == "send" else "send"
            return any(
                (o := self.op(r)) and o.kind == opposite and o.peer in (None, rank) and op.peer in (None, r)
                for r in members
            )
        inside = [r for r in members if (other := self.op(r)) and (other.kind, other.group) == (op.kind, op.group)]
        if op.kind in ("broadcast", "scatter", "gather") and op.peer in inside:
            return True
        return len(inside) == len(members)


class ClusterScene:
    """The scene of a simulated cluster, which is brought up to date process by process."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.cluster = cluster
        self.scene = Scene()
        self.driver = self.scene.driver()
        self.ranks: list[SceneProcess] = []
        self.programs: list[Call] = []
        self.asked: dict[tuple[int, int], Call] = {}
        for rank in range(len(cluster.programs)):
            proc = self.scene.actor("Rank", owner_id=self.driver.worker_id).works_for()
            proc.tasks_read = True
            proc.is_member(*(self._group(number, rank) for number, ranks in enumerate(cluster.groups) if rank in ranks))
            self.ranks.append(proc)
            self.programs.append(self.scene.call(proc, "train", by=self.driver))
            for other in self.ranks:
                other.executed = 0
        for rank, proc in enumerate(self.ranks):
            proc.runs(self.programs[rank])
        for proc in self.ranks:
            for other in self.ranks:
                if other is not proc:
                    proc.holds(other)
        self.driver.gets(*self.programs)
        for rank in range(len(self.ranks)):
            self.update(rank)
        self.update_driver()

    def _group(self, number: int, rank: int) -> ProcessGroup:
        return group_of(rank, *self.cluster.groups[number], name=str(number), description=f"g{number}")

    def update(self, rank: int) -> None:
        """Brings the process of one rank up to date."""
        proc, op, at = self.ranks[rank], self.cluster.op(rank), self.cluster.at[rank]
        for (asker, step), call in self.asked.items():
            if asker == rank and step != at and call in proc.submitted:
                proc.submitted.remove(call)
                proc.has(call)
        if op is None:
            proc.idles().executed = 1
            return
        thread = proc.threads[0]
        match op.kind:
            case "work" | "begin":
                thread.computes()
            case "get":
                thread.gets(self.programs[op.peer or 0])
            case "call":
                key = (rank, at)
                if key not in self.asked:
                    self.asked[key] = self.scene.call(self.ranks[op.peer or 0], "weight", by=proc)
                thread.gets(self.asked[key])
            case _:
                thread.collects(op.kind, self._group(op.group, rank), peer=op.peer, mark=str(at + 1))

    def update_driver(self) -> None:
        """Brings the driver's records of the programs up to date."""
        for rank, call in enumerate(self.programs):
            if self.cluster.at[rank] == ENDED and call in self.driver.submitted:
                self.driver.submitted.remove(call)
                self.driver.has(call)
        if not self.driver.submitted:
            self.driver.computes()

    def rank_numbers(self) -> dict[Key, int | None]:
        """The rank of each process, program and call, by its vertex; None for the driver."""
        keys: dict[Key, int | None] = {proc.key: rank for rank, proc in enumerate(self.ranks)}
        keys |= {call.key: rank for rank, call in enumerate(self.programs)}
        keys |= {call.key: rank for (rank, _), call in self.asked.items()}
        return keys | {self.driver.key: None}


@st.composite
def group_clusters(draw: st.DrawFn) -> SimulatedCluster:
    """Two to four ranks with one or two groups and short programs."""
    count = draw(st.sampled_from([2, 3, 3, 4]))
    all_ranks = tuple(range(count))
    groups = [all_ranks]
    if count > 2 and draw(st.booleans()):
        groups.append(tuple(sorted(draw(st.sets(st.sampled_from(all_ranks), min_size=2, max_size=count - 1)))))
    shared = draw(st.lists(_ops(count, groups), min_size=1, max_size=3))
    programs = []
    for rank in all_ranks:
        own = [op for op in shared if rank in groups[op.group]]
        if draw(st.integers(0, 2)) == 0:
            own = [Op("begin", op.group) if op.kind == "all_reduce" else op for op in own]
        for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
            own.insert(draw(st.integers(0, len(own))), draw(_ops(count, groups, rank)))
        if own and draw(st.integers(0, 3)) == 0:
            own.pop(draw(st.integers(0, len(own) - 1)))
        programs.append(own)
    return SimulatedCluster(groups, programs, is_buffered=draw(st.booleans()))


@st.composite
def _ops(draw: st.DrawFn, count: int, groups: list[tuple[int, ...]], rank: int | None = None) -> Op:
    """A step of all ranks, or of one rank."""
    kinds: list[Kind] = ["all_reduce", "all_reduce", "new_group", "broadcast", "gather", "scatter", "begin", "work"]
    if rank is not None:
        kinds += ["send", "recv", "get", "get", "call", "call", "call", "work", "work", "work", "begin"]
    kind = draw(st.sampled_from(kinds))
    if kind in COLLECTIVES:
        numbers = [n for n, ranks in enumerate(groups) if rank is None or rank in ranks]
        group = draw(st.sampled_from(numbers))
        is_rooted = kind in ("broadcast", "gather", "scatter")
        return Op(kind, group, draw(st.sampled_from(groups[group])) if is_rooted else None)
    if kind == "work" or rank is None:
        return Op("work")
    others = [other for other in range(count) if other != rank]
    peers: list[int | None] = [*others, None] if kind == "recv" else [*others]
    return Op(kind, 0, draw(st.sampled_from(peers)))
