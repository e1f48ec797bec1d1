"""Which step made each call, and which waits lie between two: against programs that are run at random."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from dstack.analysis.predict.source_walk import BEGIN, SourceWalk
from dstack.observed.outlines import Step


def call(name: str, *loops: int, is_optional: bool = False) -> Step:
    return Step(kind="call", file="app.py", line=1, name=name, loops=loops, is_optional=is_optional)


def wait(*loops: int) -> Step:
    return Step(kind="wait", file="app.py", line=1, loops=loops)


LOOP_AND_ONCE_MORE = (call("a", 1), call("b", 1), call("a"), call("c"))


@pytest.mark.parametrize(
    ("steps", "names", "expected"),
    [
        (LOOP_AND_ONCE_MORE, "ababac", [0, 1, 0, 1, 2, 3]),
        (LOOP_AND_ONCE_MORE, "abac", [0, 1, 2, 3]),
        (LOOP_AND_ONCE_MORE, "ac", [2, 3]),
        (LOOP_AND_ONCE_MORE, "abba", [None, 1, 1, None]),  # no walk: b is always behind an a
        ((call("a", is_optional=True), call("a", is_optional=True)), "a", [None]),
        ((call("a"), call("a")), "aa", [0, 1]),
        ((call("a"), call(""), call("a")), "aaa", [0, None, 2]),
        ((call("a"),), "ab", [0, None]),
    ],
)
def test_the_step_of_each_call(steps: Sequence[Step], names: str, expected: list[int | None]) -> None:
    assert SourceWalk(steps, is_whole=True).sites([*names], has_ended=True) == expected


def test_the_last_calls_of_a_caller_that_runs_may_be_of_either_step() -> None:
    walk = SourceWalk(LOOP_AND_ONCE_MORE, is_whole=True)
    assert walk.sites([*"ababa"], has_ended=False) == [0, 1, 0, 1, None]


def test_calls_that_are_missing_may_be_anywhere() -> None:
    steps = (call("a"), call("b"), call("a"))
    assert SourceWalk(steps, is_whole=True).sites([*"ab"], has_ended=False) == [0, 1]
    assert SourceWalk(steps, is_whole=False).sites(["a"], has_ended=True) == [None]


@dataclass
class Program:
    """A random program: its steps, and a run of it: the steps of its calls, with the waits before each."""

    random: Random
    steps: list[Step] = field(default_factory=list)
    calls: list[tuple[int, set[int]]] = field(default_factory=list)
    passed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        body = self.block(3, (), is_optional=False)
        self.run(body)

    def block(self, depth: int, loops: tuple[int, ...], *, is_optional: bool) -> list[object]:
        found: list[object] = []
        for _ in range(self.random.randint(1, 3)):
            kind = self.random.choice(["call", "call", "wait", "loop", "branch"] if depth else ["call"])
            if kind == "call" or (kind == "wait" and is_optional):
                name = self.random.choice("abc")
                found.append(len(self.steps))
                self.steps.append(call(name, *loops, is_optional=is_optional))
            elif kind == "wait":
                found.append(len(self.steps))
                self.steps.append(wait(*loops))
            elif kind == "loop":
                line = self.random.randrange(10**9)
                inside = self.block(depth - 1, (*loops, line), is_optional=is_optional)
                found.append((inside, any(one.kind == "wait" and line in one.loops for one in self.steps)))
            else:
                found.append(self.block(depth - 1, loops, is_optional=True))
        return found

    def run(self, body: Sequence[object]) -> None:
        for one in body:
            if isinstance(one, int):
                self.step(one)
            elif isinstance(one, tuple):
                inside, has_wait = one
                for _ in range(self.random.randint(int(has_wait), 2)):
                    self.run(inside)
            elif isinstance(one, list) and self.random.random() < 0.5:
                self.run(one)

    def step(self, number: int) -> None:
        if self.steps[number].kind == "wait":
            self.passed.add(number)
        else:
            self.calls.append((number, self.passed))
            self.passed = set()

    def between(self) -> Iterator[tuple[int, int, set[int]]]:
        last = BEGIN
        for site, passed in self.calls:
            yield last, site, passed
            last = site


def test_what_is_known_of_a_walk_is_true() -> None:
    for seed in range(400):
        program = Program(Random(seed))
        walk = SourceWalk(program.steps, is_whole=True)
        names = [program.steps[site].name for site, _ in program.calls]
        for has_ended in (True, False):
            found = walk.sites(names, has_ended=has_ended)
            assert all(site in (None, true) for site, (true, _) in zip(found, program.calls, strict=True)), seed
        waits = [number for number, step in enumerate(program.steps) if step.kind == "wait"]
        for last, site, passed in program.between():
            assert all(walk.passes(one, last, site) in (None, one in passed) for one in waits), seed


def test_most_of_a_walk_is_known() -> None:
    programs = [Program(Random(seed)) for seed in range(400)]
    walks = [
        (SourceWalk(one.steps, is_whole=True), [one.steps[site].name for site, _ in one.calls]) for one in programs
    ]
    known = [site is not None for walk, names in walks for site in walk.sites(names, has_ended=True)]
    assert sum(known) > 0.6 * len(known)
