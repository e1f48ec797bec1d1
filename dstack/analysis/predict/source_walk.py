"""The calls of a caller, in their order, as a walk through the steps of its source: what it passes between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from dstack.observed.outlines import Step

BEGIN = -1
"""The place before the first step; that after the last one is their number."""
MOST_SITES = 12
"""Calls of a name with more steps than this have no known step."""

_Loops = tuple[int, ...]
_Part = tuple[int, int, _Loops]
"""Steps from one number up to another, without it, of which those in these loops or outside of them are always run."""


class SourceWalk:
    """The ways through the steps of a function, for all of its calls.

    If the calls that are known are not ``is_whole``, two calls need not follow each other, so that a walk may pass any.
    """

    def __init__(self, steps: Sequence[Step], *, is_whole: bool) -> None:
        self.steps = steps
        self.has_locks = any(step.kind in ("acquire", "release") for step in steps)
        unsure = (number for number, step in enumerate(steps) if step.kind == "wait" and not step.of)
        self.first_unsure = next(unsure, None)
        """The first wait for something unknown."""
        self._always = [
            number
            for number, step in enumerate(steps)
            if is_whole and step.kind == "call" and step.name and not step.is_optional
        ]
        self._waits: dict[int, tuple[int | None, bool | None]] = {}
        self._passed: dict[tuple[int, int, int], bool | None] = {}
        self._known: dict[tuple[int, int], Sequence[Sequence[_Part]]] = {}

    def wait_for(self, site: int) -> tuple[int | None, bool | None]:
        """The step that waits for what a step has called, and whether that is certain; None if that is unknown."""
        if site not in self._waits:
            self._waits[site] = self._wait_for(site)
        return self._waits[site]

    def _wait_for(self, site: int) -> tuple[int | None, bool | None]:
        step = self.steps[site]
        if step.is_timed:  # it may be cancelled
            return None, None
        later = [number for number, one in enumerate(self.steps) if one.kind == "wait" and site in one.of]
        wait = next((number for number in later if not self.steps[number].is_timed), None)
        if wait is None:
            return None, None if later or step.escapes else False
        return wait, True if step.is_optional or not self.steps[wait].is_optional else None

    def end_of_loop(self, *numbers: int) -> int:
        """The step after the innermost loop around these steps; the end without one."""
        inside = self._inside(numbers)
        return inside[-1] + 1 if inside else len(self.steps)

    def begin_of_loop(self, *numbers: int) -> int:
        """The first step of the innermost loop around these steps."""
        inside = self._inside(numbers)
        return inside[0] if inside else numbers[-1]

    def _inside(self, numbers: Iterable[int]) -> Sequence[int]:
        common = [loop for loop in self.steps[min(numbers)].loops if all(loop in self.steps[n].loops for n in numbers)]
        return [n for n, step in enumerate(self.steps) if common and common[-1] in step.loops]

    def passes(self, wait: int, one: int, then: int) -> bool | None:
        """Whether a wait is passed between a step and that of the next call; None if there are both ways, or none."""
        place = wait, one, then
        if place not in self._passed:
            self._passed[place] = self._passes(*place)
        return self._passed[place]

    def _passes(self, wait: int, one: int, then: int) -> bool | None:
        found = {any(begin <= wait < end for begin, end, _ in way) for way in self._ways(one, then)}
        if found and any(begin <= wait < end for begin, end, _ in self._idle_passes(one, then)):
            found.add(True)
        return found.pop() if len(found) == 1 else None

    def _idle_passes(self, one: int, then: int) -> Iterator[_Part]:
        """The loops around either of two steps of which a pass may make no call."""
        for step, loops in ((one, self._loops(one)), (then, self._loops(then))):
            for depth in range(1, len(loops) + 1):
                around = (*self._around(step, loops[:depth]), loops[:depth])
                if not self._is_run(around):
                    yield around

    def sites(self, names: Sequence[str], *, has_ended: bool) -> Sequence[int | None]:
        """The step that made each call, by the names of the calls in their order; None where the walks differ.

        A caller that ``has_ended`` came to its end. A name with one step has no other, whatever walks there are.
        """
        if not names:
            return ()
        found = [own[0] if len(own := self._by_name.get(name, ())) == 1 else None for name in names]
        several = {name: own for name, own in self._by_name.items() if 1 < len(own) <= MOST_SITES}
        if several.keys().isdisjoint(names):
            return found
        known = [at for at, name in enumerate(names) if name in several or found[at] is not None]
        layers = [self._by_name[names[at]] for at in known]
        for at, walked in zip(known, self._walked(layers, has_ended=has_ended), strict=True):
            if found[at] is None and len(walked) == 1 and walked[0] not in self._by_name.get("", ()):
                found[at] = walked[0]
        return found

    @cached_property
    def _by_name(self) -> Mapping[str, Sequence[int]]:
        """The steps that may make a call of a name; if it has several, also those that may make any."""
        found: dict[str, list[int]] = defaultdict(list)
        for number, step in enumerate(self.steps):
            if step.kind == "call":
                found[step.name].append(number)
        unknown = found.get("", [])
        return {name: [*own, *unknown] if name and len(own) > 1 else own for name, own in found.items()}

    def _walked(self, layers: Sequence[Sequence[int]], *, has_ended: bool) -> Iterator[Sequence[int]]:
        """Of the steps that can have made each call those on a walk through all; none if there is no walk."""
        reached: list[Sequence[int]] = []
        near: Sequence[int] = [BEGIN]
        for layer in layers:
            near = [step for step in layer if any(self._may_follow(one, step) for one in near)]
            reached.append(near)
        kept: list[Sequence[int]] = []
        near = [len(self.steps)]
        for layer in reversed(reached):
            is_open = not kept and not has_ended
            near = [one for one in layer if is_open or any(self._may_follow(one, step) for step in near)]
            kept.append(near)
        return reversed(kept)

    def _may_follow(self, one: int, then: int) -> bool:
        return bool(self._ways(one, then))

    def _ways(self, one: int, then: int) -> Sequence[Sequence[_Part]]:
        """The ways from a step to that of the next call: straight on, or once around a loop that both are in."""
        if (one, then) not in self._known:
            own, other = self._loops(one), self._loops(then)
            ways: list[Sequence[_Part]] = [] if then <= one else [((one + 1, then, own), (one + 1, then, other))]
            for depth in range(1, _shared(own, other) + 1):
                begin, end = self._around(one, own[:depth])
                if begin <= then < end:
                    ways.append(((one + 1, end, own), (begin, then, other)))
            self._known[one, then] = [way for way in ways if not any(self._is_run(part) for part in way)]
        return self._known[one, then]

    def _is_run(self, part: _Part) -> bool:
        """Whether a part of a way has a call that is always run."""
        begin, end, loops = part
        inside = (self.steps[one].loops for one in self._always if begin <= one < end)
        return any(own == loops[: len(own)] for own in inside)

    def _around(self, step: int, loops: _Loops) -> tuple[int, int]:
        """The first step of a loop around a step, and the first one after the loop."""
        begin = end = step
        while begin > 0 and self.steps[begin - 1].loops[: len(loops)] == loops:
            begin -= 1
        while end < len(self.steps) and self.steps[end].loops[: len(loops)] == loops:
            end += 1
        return begin, end

    def _loops(self, number: int) -> _Loops:
        return self.steps[number].loops if 0 <= number < len(self.steps) else ()


def _shared(one: _Loops, other: _Loops) -> int:
    """How many of the outermost loops both have."""
    pairs = zip(one, other, strict=False)
    return next((depth for depth, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
