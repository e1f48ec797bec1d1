"""The steps of one function while its source is walked, and the running functions that they are in."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from dstack.observed.outlines import Step, StepKind
from dstack.probes.node.outlines.definitions import Awaitable, FunctionInfo, Instance, Items, Scope, Value
from dstack.probes.node.outlines.source_modules import SourceModule
from dstack.probes.node.outlines.values import refs_in

MAX_STEPS = 300
MAX_NAME = 200
BLOCKING: Sequence[StepKind] = ("wait", "acquire")


class TooManySteps(Exception):
    """The function has too many steps, with those of its helpers."""


class Yielded(Exception):
    """A fixture has yielded its value: what follows is run after the test."""


@dataclass(slots=True)
class Draft:
    """A step to which more may be added; its fields are those of :class:`dstack.observed.outlines.Step`."""

    kind: StepKind
    file: str
    line: int
    source: str
    name: str
    awaits: bool
    is_timed: bool
    is_any: bool
    is_optional: bool
    loops: tuple[int, ...]
    count: int = 1
    is_passed: bool = False
    of: set[int] = field(default_factory=set)
    takes: set[int] = field(default_factory=set)
    escapes: bool = False

    def finished(self) -> Step:
        """The step."""
        return Step(
            kind=self.kind,
            file=self.file,
            line=self.line,
            source=self.source,
            name=self.name[:MAX_NAME],
            of=tuple(sorted(self.of)),
            takes=tuple(sorted(self.takes)),
            escapes=self.escapes,
            awaits=self.awaits,
            is_timed=self.is_timed or self.is_any,
            is_any=self.is_any and not self.is_timed,
            is_optional=self.is_optional,
            count=self.count,
            is_passed=self.is_passed,
            loops=self.loops,
        )


Effect = Literal["blocks", "frees"]
"""What an event loop or thread of its own does to the thread that waits for it: it is blocked, or free."""


class Running:
    """A function that is walked, or the code of a module: its names, and whether it may have ended.

    ``may_have_left`` since a branch returned, ``may_have_skipped`` since one left this pass of a loop. It has an
    ``effect`` if an event loop or thread of its own runs it. If it ``is_static``, names have no values of the moment.
    With ``stops_at_yield`` its walk ends with a yield, by :class:`Yielded`.
    """

    def __init__(
        self,
        scope: Scope,
        captured: frozenset[str],
        info: FunctionInfo | None = None,
        closure: Running | None = None,
        path: tuple[Hashable, ...] = (),
        *,
        effect: Effect | None = None,
        is_static: bool = False,
        stops_at_yield: bool = False,
    ) -> None:
        self.scope = scope
        self._is_static = is_static
        self.stops_at_yield = stops_at_yield
        self.info = info
        self.closure = closure
        self.captured = captured
        self.path = path
        self.effect = effect
        self.names: dict[str, Value] = {}
        self.returned: list[Value] = []
        self.yielded = Items()
        self.may_have_left = False
        self.may_have_skipped = False

    @property
    def module(self) -> SourceModule:
        """The file that it is in."""
        return self.scope.module

    def value(self, name: str) -> Value:
        """What a name stands for here and now."""
        running: Running | None = None if self._is_static else self
        scope = self.scope
        while running is not None:
            if name in running.names:
                return running.names[name]
            scope = running.scope
            if name in scope.bindings and scope.parent is not None:
                return None
            running = running.closure
        return _unshared(scope.value(name))


def _unshared(value: Value) -> Value:
    """A value of a module, without what one function has done to it."""
    if isinstance(value, Items):
        return Items([*value.elements], value.is_fixed)
    return Instance(value.info, is_shared=True) if isinstance(value, Instance) else value


class Steps:
    """The steps of one function, each once, and what holds for those that are added next."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.running: list[Running] = []
        self._polled: dict[int, tuple[int, ...]] = {}
        """The loops around the last poll for a call."""
        self.held = 0
        """The locks of threads that are held."""
        self.loops: tuple[int, ...] = ()
        self._branches = 0
        self._timed = 0
        self._by_place: dict[Hashable, int] = {}

    @property
    def current(self) -> Running:
        """The function that is walked."""
        return self.running[-1]

    @contextmanager
    def in_branch(self) -> Iterator[None]:
        """What is only run under a condition."""
        self._branches += 1
        try:
            yield
        finally:
            self._branches -= 1

    @contextmanager
    def in_time_limit(self, applies: bool = True) -> Iterator[None]:
        """What is ended by a timeout."""
        self._timed += applies
        try:
            yield
        finally:
            self._timed -= applies

    @contextmanager
    def in_loop(self, line: int) -> Iterator[None]:
        """What is run again and again."""
        before, skipped = self.loops, self.current.may_have_skipped
        self.loops = (*before, line)
        try:
            yield
        finally:
            self.loops = before
            self.current.may_have_skipped = skipped

    def add(
        self,
        kind: StepKind,
        node: ast.expr,
        name: str = "",
        *,
        awaits: bool = False,
        is_timed: bool = False,
        is_any: bool = False,
    ) -> int:
        """The step at an expression; a second pass of a loop finds that of the first. Raises TooManySteps."""
        place = (self.current.path, node, kind, name)
        if place not in self._by_place:
            if len(self.drafts) >= MAX_STEPS:
                raise TooManySteps
            module = self.current.module
            self._by_place[place] = len(self.drafts)
            self.drafts.append(
                Draft(
                    kind=kind,
                    file=module.path,
                    line=node.lineno,
                    source=module.line(node.lineno),
                    name=name,
                    awaits=self._awaits(awaits) and kind in BLOCKING,
                    is_timed=is_timed or (self._timed > 0 and kind in BLOCKING),
                    is_any=is_any,
                    is_optional=self._is_optional,
                    loops=self.loops,
                )
            )
        return self._by_place[place]

    def _awaits(self, awaits: bool) -> bool:
        """Whether the thread that runs the function is free, by the outermost loop or thread that runs elsewhere."""
        return next((one.effect == "frees" for one in self.running if one.effect), awaits)

    @property
    def _is_optional(self) -> bool:
        return self._branches > 0 or any(one.may_have_left or one.may_have_skipped for one in self.running)

    def wait(
        self,
        node: ast.expr,
        value: Value,
        *,
        awaits: bool = False,
        is_timed: bool = False,
        is_any: bool = False,
        is_poll: bool = False,
    ) -> None:
        """A wait for the refs in a value; there is none if all of them are there. A poll tells which are there."""
        found = [*refs_in(value)]
        if found and not any(one.calls for one in found):
            return
        calls = {call for one in found for call in one.calls}
        draft = self.drafts[self.add("wait", node, awaits=awaits, is_timed=is_timed, is_any=is_any)]
        draft.of |= calls
        draft.is_optional |= any(one.is_one_of for one in found)
        if is_poll and (is_timed or is_any):
            self._polled.update(dict.fromkeys(calls, self.loops))
        elif calls and all(self._is_there(call, draft) for call in calls):
            draft.is_timed = True

    def _is_there(self, call: int, wait: Draft) -> bool:
        """Whether a call may only be waited for because a poll has shown that it has ended."""
        loops = self._polled.get(call)
        return loops is not None and (wait.is_optional or len(wait.loops) < len(loops))

    def cancel(self, values: Iterable[Value]) -> None:
        """The calls of these refs may be cancelled."""
        for value in values:
            for refs in refs_in(value):
                for call in refs.calls:
                    self.drafts[call].is_timed = True

    def escape(self, values: Iterable[Value]) -> None:
        """The refs in these values go where nothing follows them."""
        for value in values:
            for refs in refs_in(value):
                for call in refs.calls:
                    self.drafts[call].escapes = True

    def _unpaired(self) -> Iterator[int]:
        """The acquires without a later release of the lock, and the releases without an acquire before."""
        names = [(one.kind, one.name) for one in self.drafts]
        for at, (kind, name) in enumerate(names):
            if self.drafts[at].is_passed:
                continue
            other, where = ("release", names[at:]) if kind == "acquire" else ("acquire", names[:at])
            if kind in ("acquire", "release") and (other, name) not in where:
                yield at

    def finished(self) -> tuple[Step, ...]:
        """All steps, in the order of their source; a lock that stays held, or was, is none that this function holds."""
        left = set(self._unpaired())
        kept = [one for at, one in enumerate(self.drafts) if at not in left]
        places = {old: new for new, old in enumerate(at for at in range(len(self.drafts)) if at not in left)}
        for one in kept:
            one.of, one.takes = {places[at] for at in one.of}, {places[at] for at in one.takes}
        return tuple(one.finished() for one in kept)


def flattened(awaitable: Awaitable) -> list[Value]:
    """The parts of an awaitable, and of the containers among them."""
    found: list[Value] = []
    for part in awaitable.parts:
        found += part.elements if isinstance(part, Items) else [part]
    return found
