"""Random rank programs: ranks that make the same collectives, but for one mutation of one of them.

A program is a list of lines, each with the ranks that execute it. So a mutation changes lines of one rank, and what
each rank calls in which order is known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from typing import TypeVar

T = TypeVar("T")

Ranks = frozenset[int]
OPERATIONS = {
    "all_reduce": "dist.all_reduce({x}, {end})",
    "broadcast": "dist.broadcast({x}, src={root}, {end})",
    "reduce": "dist.reduce({x}, dst={root}, {end})",
    "all_gather": "dist.all_gather({many}, {x}, {end})",
    "all_gather_into_tensor": "dist.all_gather_into_tensor({wide}, {x}, {end})",
    "gather": "dist.gather({x}, {many} if rank == {root} else None, dst={root}, {end})",
    "scatter": "dist.scatter({x}, {many} if rank == {root} else None, src={root}, {end})",
    "reduce_scatter_tensor": "dist.reduce_scatter_tensor({x}, {wide}, {end})",
    "all_to_all_single": "dist.all_to_all_single(torch.empty_like({wide}), {wide}, {end})",
    "barrier": "dist.barrier({end})",
}
SIZES, TYPES = (2, 8, 64, 1024), ("float32", "float64", "int32", "int64")
SLOW_S = 600


@dataclass(frozen=True)
class Call:
    """A collective of a group: its root is a rank of the world, and a late one is awaited some lines later."""

    operation: str
    group: str
    size: int
    dtype: str
    root: int
    late: str = ""

    def source(self, members: Ranks) -> str:
        """The statement that makes it."""
        one = f"torch.ones({self.size}, dtype=torch.{self.dtype})"
        values = {
            "x": one,
            "many": f"[torch.ones({self.size}, dtype=torch.{self.dtype}) for _ in range({len(members)})]",
            "wide": f"torch.ones({self.size * len(members)}, dtype=torch.{self.dtype})",
            "root": self.root,
            "end": f'group=self.on("{self.group}")' + (", async_op=True" if self.late else ""),
        }
        return (f"{self.late} = " if self.late else "") + OPERATIONS[self.operation].format(**values)


@dataclass(frozen=True)
class Loop:
    """A loop: its number, and how often it runs, once less on the rank ``short``."""

    number: int
    times: int
    short: int = -1

    def source(self) -> str:
        """Its first line."""
        less = f" - (rank == {self.short})" if self.short >= 0 else ""
        return f"for _ in range({self.times}{less}):"


@dataclass(frozen=True)
class Line:
    """A statement and the ranks that execute it; the method ends with one that ``ends``."""

    ranks: Ranks
    text: str
    call: Call | None = None
    loop: Loop | None = None
    ends: bool = False


@dataclass(frozen=True)
class Program:
    """A program with what is true of it: the mutated rank, what it does, and which lines are not as before that."""

    seed: int
    ranks: int
    groups: dict[str, Ranks]
    lines: tuple[Line, ...]
    mutation: str
    mutant: int
    changed: frozenset[Line]
    gathers: str
    has_oracle: bool = True
    counted: bool = True

    def source(self) -> str:
        """The text of the program."""
        return "\n".join([text for text, _ in self._numbered()]) + "\n"

    def differences(self) -> dict[str, tuple[int, set[int]]]:
        """Where the mutated rank first differs in each group: the number of the collective, and the lines of both."""
        found = {}
        for group, members in self.groups.items():
            own, *others = [self.calls(rank, group) for rank in sorted(members, key=lambda rank: rank != self.mutant)]
            if self.mutant in members and own != others[0]:
                number = next(n for n, pair in enumerate(zip_longest(own, others[0]), start=1) if pair[0] != pair[1])
                found[group] = number, {*own[number - 1 : number], *others[0][number - 1 : number]}
        return found

    def changed_lines(self) -> set[int]:
        """The numbers of the lines that the mutation has changed, or whose call is the first that differs."""
        first = (line for _, lines in self.differences().values() for line in lines)
        return {*first, *(number for number, line in self._lines() if line in self.changed)}

    def calls(self, rank: int, group: str) -> list[int]:
        """The lines of the collectives of a group that a rank would enter if nothing blocked."""
        return [number for number, line in self._executed(rank) if line.call and line.call.group == group]

    def _executed(self, rank: int) -> Iterator[tuple[int, Line]]:
        """The lines that a rank executes, with their numbers, loops unrolled."""
        for loop, lines in groupby(self._lines(), key=lambda numbered: numbered[1].loop):
            times = loop.times - (loop.short == rank) if loop else 1
            for number, line in [*lines] * times:
                if rank in line.ranks:
                    yield number, line
                    if line.ends:
                        return

    def _lines(self) -> list[tuple[int, Line]]:
        return [(number, line) for number, (_, line) in enumerate(self._numbered(), start=1) if line]

    def _numbered(self) -> Iterator[tuple[str, Line | None]]:
        """Each line of the text with what it was made of."""
        yield from ((text, None) for text in HEAD.format(**vars(self)).splitlines())
        for loop, lines in groupby(self.lines, key=lambda line: line.loop):
            if loop:
                yield " " * 8 + loop.source(), None
            for line in lines:
                condition = "" if len(line.ranks) == self.ranks else f"if rank in {tuple(sorted(line.ranks))}: "
                yield " " * (12 if loop else 8) + condition + line.text, line
        yield from ((text, None) for text in FOOT.format(**vars(self)).splitlines())


HEAD = '''\
"""Seed {seed}, {ranks} ranks: {mutation} (rank {mutant})."""
import sys
import time

import torch
import torch.distributed as dist

from rank_actor import Rank, drive


def compute(seconds):
    end = time.time() + seconds
    while time.time() < end:
        pass


class Trainer(Rank):
    def train(self):
        rank = self.rank
        self.join()'''
FOOT = """

if __name__ == "__main__":
    drive(Trainer, {ranks}, "{gathers}")"""


class Generator:
    """Makes one program of one seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._seed = seed
        self._ranks = 0
        self.groups: dict[str, Ranks] = {}
        """The members of each group."""

    def program(self, mutation: str = "") -> Program:
        """One with this mutation, or one at random."""
        name = mutation or self._chance.choice([*MUTATIONS])
        gathers = self._chance.choice(["get", "wait"])
        while True:
            self._ranks, self.groups = self._members()
            lines, mutant = self._steps(), self._chance.randrange(self._ranks)
            mutated = (MUTATIONS | SLOW)[name](self, lines, mutant)
            if mutated is not None:
                changed = frozenset(mutated) - frozenset(lines)
                made = (self._seed, self._ranks, self.groups, tuple(mutated), name, mutant)
                return Program(*made, changed, gathers)

    def _members(self) -> tuple[int, dict[str, Ranks]]:
        ranks = self._chance.choice([3, 4, 5])
        groups = {"world": frozenset(range(ranks))}
        for name in ("rows", "columns")[: self._chance.choice([1, 2])]:
            groups[name] = frozenset(self._chance.sample(range(ranks), self._chance.choice([2, 3])))
        return ranks, groups

    def _steps(self) -> list[Line]:
        lines = [
            Line(self.groups["world"], f'self.groups["{name}"] = dist.new_group({sorted(ranks)}, group_desc="{name}")')
            for name, ranks in self.groups.items()
            if name != "world"
        ]
        for number in range(self._chance.randint(6, 25)):
            lines += self._step(number)
        return [*lines, self.line(Call("barrier", "world", 1, "float32", 0))]

    def _step(self, number: int) -> list[Line]:
        kind = self._chance.choices(["call", "late", "pair", "loop"], [6, 1, 1, 1])[0]
        if kind == "pair":
            source, to = self._chance.sample(range(self._ranks), 2)
            return [
                Line(frozenset([source]), f"dist.send(torch.ones(4), dst={to})"),
                Line(frozenset([to]), f"dist.recv(torch.empty(4), src={source})"),
            ]
        if kind == "late":
            started = self.line(replace(self.call(), operation="all_reduce", late=f"work{number}"))
            between = [self.line(self.call()) for _ in range(self._chance.choice([0, 1, 2]))]
            return [started, *between, Line(started.ranks, f"work{number}.wait()")]
        if kind == "loop":
            loop = Loop(number, self._chance.choice([2, 3, 5]))
            return [replace(self.line(self.call()), loop=loop) for _ in range(self._chance.choice([1, 2, 3]))]
        return [self.line(self.call())]

    def call(self) -> Call:
        """A random collective of a random group."""
        group = self._chance.choice(["world", *self.groups])
        root = self._chance.choice(sorted(self.groups[group]))
        operation = self._chance.choice([*OPERATIONS, "all_reduce", "broadcast", "barrier"])
        return Call(operation, group, self._chance.choice(SIZES), self._chance.choice(TYPES), root)

    def line(self, call: Call) -> Line:
        """The line that makes it on all members of its group."""
        members = self.groups[call.group]
        return Line(members, call.source(members), call)

    def place(self, lines: list[Line], mutant: int, suits: Callable[[Line, Call], bool]) -> int | None:
        """The position of a random collective of the mutated rank that suits; the last one never does."""
        places = [at for at, one in enumerate(lines[:-1]) if one.call and mutant in one.ranks and suits(one, one.call)]
        return self.choice(places) if places else None

    def choice(self, values: Sequence[T]) -> T:
        """One of these at random."""
        return self._chance.choice(values)


Mutated = list[Line] | None
Mutation = Callable[[Generator, list[Line], int], Mutated]


def _is_alone(line: Line, call: Call) -> bool:
    """Whether it is in no loop, and awaited at once."""
    return not line.loop and not call.late


def _only(line: Line, mutant: int) -> Line:
    return replace(line, ranks=frozenset([mutant]))


def _without(line: Line, mutant: int) -> Line:
    return replace(line, ranks=line.ranks - {mutant})


def _skips(made: Generator, lines: list[Line], mutant: int) -> Mutated:
    at = made.place(lines, mutant, lambda _, call: not call.late)
    return None if at is None else [*lines[:at], _without(lines[at], mutant), *lines[at + 1 :]]


def _never_begins(made: Generator, lines: list[Line], mutant: int) -> Mutated:
    at = made.place(lines, mutant, lambda _, call: bool(call.late))
    if at is None:
        return None
    waits = f"{lines[at].text.partition(' = ')[0]}.wait()"
    return [_without(line, mutant) if n == at or line.text == waits else line for n, line in enumerate(lines)]


def _adds(made: Generator, lines: list[Line], mutant: int) -> Mutated:
    call = made.call()
    at = made.place(lines, mutant, _is_alone)
    if at is None or mutant not in made.groups[call.group]:
        return None
    return [*lines[:at], _only(made.line(call), mutant), *lines[at:]]


def _swaps(made: Generator, lines: list[Line], mutant: int) -> Mutated:
    at = made.place(lines, mutant, _is_alone)
    if at is None:
        return None
    first, second = lines[at : at + 2]
    if not (first.call and second.call and _is_alone(second, second.call) and mutant in second.ranks):
        return None
    if first.call.operation == second.call.operation:
        return None
    own, others = [_only(second, mutant), _only(first, mutant)], [_without(first, mutant), _without(second, mutant)]
    return [*lines[:at], *own, *others, *lines[at + 2 :]]


def _replaced(made: Generator, lines: list[Line], mutant: int, at: int, call: Call) -> list[Line]:
    """The lines with another call of the mutated rank instead of one."""
    own = replace(_only(made.line(call), mutant), loop=lines[at].loop)
    return [*lines[:at], own, _without(lines[at], mutant), *lines[at + 1 :]]


def _size(made: Generator, lines: list[Line], mutant: int) -> Mutated:
    at = made.place(lines, mutant, lambda _, call: call.operation != "barrier")
    if at is None or (call := lines[at].call) is None:
        return None
    return _replaced(made, lines, mutant, at, replace(call, size=made.choice([n for n in SIZES if n != call.size])))


def _type(made: Generator, lines: list[Line], mutant: int) -> Mutated:
    at = made.place(lines, mutant, lambda _, call: call.operation != "barrier")
    if at is None or (call := lines[at].call) is None:
        return None
    return _replaced(made, lines, mutant, at, replace(call, dtype=made.choice([n for n in TYPES if n != call.dtype])))


def _other_group(made: Generator, lines: list[Line], mutant: int) -> Mutated:
    at = made.place(lines, mutant, lambda _, call: not call.late)
    if at is None or (call := lines[at].call) is None:
        return None
    names = [name for name, ranks in made.groups.items() if mutant in ranks and name != call.group]
    return _replaced(made, lines, mutant, at, replace(call, group=made.choice(names), root=mutant)) if names else None


def _inserted(text: str, *, ends: bool = False) -> Mutation:
    """Another statement of the mutated rank before one of its collectives."""

    def mutation(made: Generator, lines: list[Line], mutant: int) -> Mutated:
        at = made.place(lines, mutant, _is_alone)
        own = Line(frozenset([mutant]), text.format(other=(mutant + 1) % len(made.groups["world"])), ends=ends)
        return None if at is None else [*lines[:at], own, *lines[at:]]

    return mutation


def _uneven(made: Generator, lines: list[Line], mutant: int) -> Mutated:
    at = made.place(lines, mutant, lambda line, _: bool(line.loop))
    if at is None or (loop := lines[at].loop) is None:
        return None
    return [replace(one, loop=replace(loop, short=mutant)) if one.loop == loop else one for one in lines]


def _order(made: Generator, lines: list[Line], mutant: int) -> Mutated:
    if len(made.groups) < 3 or made.groups["rows"] == made.groups["columns"] or mutant not in made.groups["rows"]:
        return None
    first, second = lines[:2]
    own, others = [_only(second, mutant), _only(first, mutant)], [_without(first, mutant), _without(second, mutant)]
    return [*own, *others, *lines[2:]]


MUTATIONS: dict[str, Mutation] = {
    "skips": _skips,
    "adds": _adds,
    "swaps": _swaps,
    "size": _size,
    "type": _type,
    "other group": _other_group,
    "returns": _inserted("return", ends=True),
    "raises": _inserted('raise ValueError("a bad batch")', ends=True),
    "uneven": _uneven,
    "order of groups": _order,
    "never begins": _never_begins,
    "receives": _inserted("dist.recv(torch.empty(4), src={other})"),
}
SLOW: dict[str, Mutation] = {
    "sleeps": _inserted(f"time.sleep({SLOW_S})"),
    "computes": _inserted(f"compute({SLOW_S})"),
}
