"""What each node has of a request that none has room for, and what is free though not on one node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dstack import words
from dstack.analysis.findings.finding_facts import FindingFacts
from dstack.analysis.findings.narration import more
from dstack.analysis.graph.resource_holders import EPSILON, in_group, wanted
from dstack.analysis.graph.resource_requests import Unit, any_matches, asked_labels, units_of
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.model.diagnosis import Step, Vertex
from dstack.model.snapshot import Node

SHOWN_NODES = 8


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """What a node has in all, and what of it is free."""

    node: Node
    total: Mapping[str, float]
    free: Mapping[str, float]

    def lacks(self, unit: Unit) -> str:
        """``lacks 2 GPU``, ``has only 1 GPU in all``, ``has no label zone: a``; empty where there is room."""
        if not any_matches(unit.selectors, self.node.labels):
            return f"has no label {words.listed(list(map(names.labels, unit.selectors)), ' or ')}"
        small = [name for name, amount in unit.resources.items() if self.total.get(name, 0.0) < amount - EPSILON]
        if small:
            most = {name: self.total.get(name, 0.0) for name in small}
            return f"has {'only ' if any(most.values()) else ''}{names.amounts(most)} in all"
        short = {name: amount - self.free.get(name, 0.0) for name, amount in unit.resources.items()}
        lacking = {name: amount for name, amount in short.items() if amount > EPSILON}
        return f"lacks {names.amounts(lacking)}" if lacking else ""

    def share(self, unit: Unit) -> float:
        """Which share of what is asked for is free there, of the resource that has least."""
        return min((self.free.get(name, 0.0) / amount for name, amount in unit.resources.items()), default=0.0)

    def figures(self, resources: Sequence[str]) -> str:
        """``1 of 8 CPU and 2 of 4 GPU free``."""
        shown = (name for name in resources if self.total.get(name, 0.0) > EPSILON)
        text = words.listed([f"{_amount(name, self.free).split()[0]} of {_amount(name, self.total)}" for name in shown])
        return f"{text} free" if text else ""


def room_steps(facts: FindingFacts) -> Iterator[Step]:
    """Of the first request of a finding that waits for resources: what each node has of it, and what it lacks."""
    units, rooms = _lacking_units(facts), _rooms(facts.reduced.index)
    if not units or len(rooms) < 2:
        return
    resources = sorted({name for unit in units for name in unit.resources})
    rooms.sort(key=lambda room: -room.share(units[0]))
    for room in rooms[:SHOWN_NODES]:
        parts = (room.figures(resources), *_places(room, units))
        yield Step(text=f"{words.capitalised(names.node(room.node))}: {'; '.join(filter(None, parts))}")
    yield from more(len(rooms) - SHOWN_NODES, "nodes")


def scattered(facts: FindingFacts) -> str:
    """``4 GPU are free, 2 GPU on each of 2 nodes, and 4 GPU must be on one``; empty where too little is free."""
    rooms = _rooms(facts.reduced.index)
    for unit in _lacking_units(facts):
        for name, amount in unit.resources.items():
            able = (room for room in rooms if any_matches(unit.selectors, room.node.labels))
            free = [part for room in able if (part := room.free.get(name, 0.0)) > EPSILON]
            if free and max(free) < amount - EPSILON and sum(free) > amount - EPSILON:
                return _scattered_in_words(name, free, amount)
    return ""


def _scattered_in_words(name: str, free: Sequence[float], amount: float) -> str:
    most = _amount(name, {name: max(free)})
    where = f"{most} on each of {len(free)} nodes" if max(free) - min(free) < EPSILON else f"at most {most} on a node"
    total = _amount(name, {name: sum(free)})
    are_free = "is free" if sum(free) <= 1 else "are free"
    return f"{total} {are_free}, {where}, and {_amount(name, {name: amount})} must be on one"


def _lacking_units(facts: FindingFacts) -> list[Unit]:
    """What the first member that lacks resources asks for."""
    lacking = (vertex for vertex in facts.members if _lacks_resources(vertex))
    return next((units for vertex in lacking if (units := _units(facts.reduced.index, vertex))), [])


def _lacks_resources(vertex: Vertex) -> bool:
    if vertex.never is not None:
        return not vertex.never.is_orphaned
    return vertex.wait is not None and bool(vertex.wait.resources)


def _units(index: SampleIndex, vertex: Vertex) -> list[Unit]:
    """What a pending task, actor or placement group asks for; nothing for what runs in a placement group."""
    if task := index.tasks.get(vertex.task_id or ""):
        request = wanted(task.required_resources)
        return [] if any(map(in_group, request)) else [Unit(request, asked_labels(index, task))]
    group = index.placement_groups.get(vertex.placement_group_id or "")
    return units_of(group) if group else []


def _rooms(index: SampleIndex) -> list[NodeRoom]:
    sample = index.sample
    nodes = (node for node in index.snapshot.nodes if node.alive)
    return [
        NodeRoom(node, sample.total.get(node.node_id) or node.resources, sample.available.get(node.node_id, {}))
        for node in nodes
    ]


def _places(room: NodeRoom, units: Sequence[Unit]) -> Iterator[str]:
    """What a node lacks of each unit that it has no room for, else that it has room."""
    lacking = [(unit, text) for unit in units if (text := room.lacks(unit))]
    for unit, text in lacking[: words.SHOWN]:
        yield f"{text} for {names.amounts(unit.resources)}" if len(units) > 1 else text
    if not lacking:
        yield "has room"


def _amount(name: str, amounts: Mapping[str, float]) -> str:
    return names.amounts({name: amounts.get(name, 0.0)})
