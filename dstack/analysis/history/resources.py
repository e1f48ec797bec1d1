"""The resources of nodes as calls take and free them, and which call freed what another one waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack.model.snapshot import Node

Amounts = Mapping[str, float]
ROUNDING = 1e-6


class FreeResources:
    """What is free on each node; with other ``totals`` of resources, each node has as much more or less of them."""

    def __init__(self, nodes: Iterable[Node], totals: Amounts | None = None) -> None:
        self._total = {node.node_id: dict(node.resources) for node in nodes if node.alive}
        for name, total in (totals or {}).items():
            self._scale(name, total)
        self._free = {node_id: dict(amounts) for node_id, amounts in self._total.items()}

    def _scale(self, name: str, total: float) -> None:
        """Whole numbers on each node, except on the one that has most."""
        having = sorted((one for one in self._total.values() if one.get(name)), key=lambda one: one[name])
        before, left = self.total(name), total
        for amounts in having[:-1]:
            amounts[name] = float(round(amounts[name] * total / before))
            left -= amounts[name]
        for amounts in having[-1:]:
            amounts[name] = max(0.0, left)

    def total(self, name: str) -> float:
        """All of a resource, on all nodes."""
        return sum(amounts.get(name, 0.0) for amounts in self._total.values())

    def can_ever_fit(self, need: Amounts) -> bool:
        """Whether a node has so much when it is idle."""
        return any(_fits(amounts, need) for amounts in self._total.values())

    def place(self, need: Amounts, preferred: str | None) -> str | None:
        """A node on which so much is free, the preferred one if possible; None if there is none."""
        if _fits(self._free.get(preferred or "", {}), need):
            return preferred
        return next((node_id for node_id, amounts in self._free.items() if _fits(amounts, need)), None)

    def can_take(self, need: Amounts, preferred: str | None) -> bool:
        """Whether so much is free on a node."""
        return not need or self.place(need, preferred) is not None

    def take(self, node_id: str | None, need: Amounts) -> None:
        """Take it, also if it is not free: Ray lets a task continue without its CPU after a wait."""
        self._add(node_id, need, -1.0)

    def give(self, node_id: str | None, need: Amounts) -> None:
        """Give it back."""
        self._add(node_id, need, 1.0)

    def _add(self, node_id: str | None, need: Amounts, sign: float) -> None:
        amounts = self._free.get(node_id or "")
        if amounts is not None:
            for name, amount in need.items():
                amounts[name] = amounts.get(name, 0.0) + sign * amount


def _fits(amounts: Amounts, need: Amounts) -> bool:
    return all(amounts.get(name, 0.0) >= amount - ROUNDING for name, amount in need.items())


@dataclass(frozen=True, slots=True)
class HeldResources:
    """When a call got its resources, on which node, and when it freed them, None if never; times in Unix seconds.

    In its ``pauses`` it waited for others, and had given its CPUs back.
    """

    number: int
    node_id: str | None
    amounts: Amounts
    ready_at: float
    taken_at: float
    given_at: float | None
    pauses: Sequence[tuple[float, float]] = ()


def find_releases(nodes: Iterable[Node], holdings: Sequence[HeldResources]) -> Mapping[int, int]:
    """By the number of a call that waited until another one freed its resources: the number of that one."""
    search = _Releases(FreeResources(nodes))
    for _, action, holding, amounts in sorted(_events(holdings), key=lambda event: event[:2]):
        search.apply(action, holding, amounts)
    return search.found


GIVES, ASKS, TAKES = range(3)
"""In this order at equal times."""
NOTICED_LATE_S = 0.005
"""A caller may notice the end of a call so much later than the node that gives its resources to the next one."""


def _events(holdings: Iterable[HeldResources]) -> Iterator[tuple[float, int, HeldResources, Amounts]]:
    for one in holdings:
        yield one.ready_at, ASKS, one, one.amounts
        yield one.taken_at, TAKES, one, one.amounts
        if one.given_at is not None:
            yield max(one.taken_at, one.given_at - NOTICED_LATE_S), GIVES, one, one.amounts
        cpus = cpus_of(one.amounts)
        for began, ended in one.pauses if cpus else ():
            yield began, GIVES, one, cpus
            yield ended, TAKES, one, cpus


def cpus_of(amounts: Amounts) -> Amounts:
    """The part that a task gives back while it waits for others."""
    return {"CPU": amounts["CPU"]} if amounts.get("CPU") else {}


Shape = tuple[tuple[str, float], ...]


class _Releases:
    """What each call waited for; calls that need the same are alike."""

    def __init__(self, resources: FreeResources) -> None:
        self.found: dict[int, int] = {}
        self._resources = resources
        self._number = 0
        self._asked: dict[int, tuple[int, Shape]] = {}
        self._waiting: Counter[Shape] = Counter()
        self._freed: dict[Shape, tuple[int, int]] = {}

    def apply(self, action: int, holding: HeldResources, amounts: Amounts) -> None:
        """What a call does; called in the order of time."""
        self._number += 1
        if action == ASKS:
            shape = tuple(sorted(holding.amounts.items()))
            self._asked[holding.number] = self._number, shape
            self._waiting[shape] += 1
        elif action == GIVES:
            for shape, count in self._waiting.items():
                if count and any(name in amounts for name, _ in shape) and not self._fits(shape):
                    self._freed[shape] = self._number, holding.number
            self._resources.give(holding.node_id, amounts)
        else:
            self._end_wait(holding.number)
            self._resources.take(holding.node_id, amounts)

    def _end_wait(self, number: int) -> None:
        """The wait of a call ends; not that of a task that continues."""
        if number in self._asked:
            asked, shape = self._asked.pop(number)
            self._waiting[shape] -= 1
            freed, by = self._freed.get(shape, (0, number))
            if freed > asked:
                self.found[number] = by

    def _fits(self, shape: Shape) -> bool:
        return self._resources.place(dict(shape), None) is not None
