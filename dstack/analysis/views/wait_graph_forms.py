"""The wait-for graph for programs, as a networkx graph, and to be drawn, as few boxes.

Similar vertices are one box, and most helpers are passed through.

Vertices are similar if they have the same name, line and wait, the same outcome, and wait for similar ones. Those of a
cycle of a finding remain apart. The boxes of the first findings come first; there are at most :data:`MAX_BOXES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dstack.analysis.findings import is_stuck
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.solve.reduction import unique
from dstack.analysis.solve.requirements import targets_of
from dstack.analysis.views.wait_tree import similarity_key
from dstack.model.diagnosis import Diagnosis, Vertex
from dstack.model.vertex_keys import Key, UnknownKey
from dstack.words import grouped

if TYPE_CHECKING:
    import networkx as nx


Outcome = Literal["deadlock", "never", "behind", "blocker", "waits", "runs", "helper"]
"""What a vertex is in its finding: in the deadlock, never possible, blocked behind these, or a final blocker."""
MAX_BOXES = 300
MAX_LINKS = 1_500
DEPTH = 12
"""Similar vertices wait for similar ones up to so many steps ahead, so the beginning of a long chain is one box."""
ORDER: Mapping[Outcome, int] = {
    "deadlock": 0, "never": 1, "blocker": 2, "behind": 3, "waits": 4, "runs": 5, "helper": 6
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WaitBox:
    """Similar vertices; ``finding`` is the number of their finding. ``own`` are the waits of these for each other.

    ``any_of`` is the number of dependencies that a wait needs, and of those it can choose from, if these differ.
    """

    vertices: tuple[Key, ...]
    outcome: Outcome
    finding: int | None = None
    any_of: tuple[int, int] | None = None
    own: int = 0

    @property
    def first(self) -> Key:
        """The vertex that represents the others."""
        return self.vertices[0]


@dataclass(frozen=True, slots=True)
class WaitLink:
    """The waits of one box for another, by their numbers.

    ``is_deadlocked`` if both are in one deadlock, and ``is_in_cycle`` if they follow each other in the cycle that its
    finding shows.
    """

    source: int
    target: int
    is_deadlocked: bool = False
    is_in_cycle: bool = False


@dataclass(frozen=True, slots=True)
class WaitBoxes:
    """The boxes and links that are drawn, and the numbers of vertices and links that are left out."""

    boxes: tuple[WaitBox, ...]
    links: tuple[WaitLink, ...]
    left_out: int = 0
    left_out_links: int = 0

    @classmethod
    def of(cls, index: SampleIndex, diagnosis: Diagnosis) -> WaitBoxes:
        """The boxes of all waits of a diagnosis."""
        return _Merger(index, diagnosis).boxes()


class _Merger:
    def __init__(self, index: SampleIndex, diagnosis: Diagnosis) -> None:
        self._index = index
        self._vertices = diagnosis.vertices
        self._finding_of: dict[Key, int] = {}
        self._outcome_of: dict[Key, Outcome] = {}
        self._in_cycles: dict[Key, int] = {}
        self._cycle_pairs: set[tuple[Key, Key]] = set()
        for number, finding in enumerate(diagnosis.findings):
            is_deadlock, stuck = finding.kind == "deadlock", is_stuck(finding)
            core = (*finding.cycle, *finding.members, *finding.helpers)
            self._mark(core, number, "deadlock" if is_deadlock else "never" if stuck else None)
            self._mark((one.vertex for one in finding.final_blockers), number, "blocker")
            self._mark(finding.blocked_behind, number, "behind" if stuck else None)
            for key in finding.cycle:
                self._in_cycles.setdefault(key, len(self._in_cycles))
        self._waiters: Counter[Key] = Counter(
            target for vertex in self._vertices.values() for target in unique(targets_of(vertex))
        )
        self._targets = self._visible_targets()
        for finding in diagnosis.findings:
            shown = [key for key in finding.cycle if key in self._targets]
            self._cycle_pairs.update(zip(shown, [*shown[1:], *shown[:1]], strict=True))

    def _mark(self, keys: Iterator[Key] | Sequence[Key], number: int, outcome: Outcome | None) -> None:
        for key in keys:
            self._finding_of.setdefault(key, number)
            if outcome is not None:
                self._outcome_of.setdefault(key, outcome)

    # Helpers

    def _visible_targets(self) -> dict[Key, list[Key]]:
        """The dependencies of each vertex that is shown, across the helpers that are not."""
        shown = [
            key
            for key, vertex in self._vertices.items()
            if (vertex.wait or vertex.never or key in self._waiters) and not self._is_passed(key)
        ]
        return {key: unique(self._behind(key)) for key in shown}

    def _is_passed(self, key: Key) -> bool:
        """Whether it is a helper with one waiter or one dependency, which edges pass through."""
        vertex = self._vertices[key]
        if vertex.is_counted or vertex.wait is None or vertex.never is not None:
            return False
        return self._waiters[key] <= 1 or len(unique(targets_of(vertex))) == 1

    def _behind(self, key: Key) -> Iterator[Key]:
        seen, ahead = {key}, [*targets_of(self._vertices[key])]
        while ahead:
            target = ahead.pop(0)
            if target in seen or target not in self._vertices:
                if target == key:
                    yield target
                continue
            seen.add(target)
            if self._is_passed(target):
                ahead += targets_of(self._vertices[target])
            else:
                yield target

    # Similar vertices

    def boxes(self) -> WaitBoxes:
        """The boxes, in order, and the links between them."""
        groups = grouped((number, key) for key, number in self._classes().items())
        ordered = sorted(groups.values(), key=self._place)
        shown = ordered[:MAX_BOXES]
        box_of = {key: number for number, group in enumerate(shown) for key in group}
        links, own = self._links(box_of)
        boxes = tuple(self._box(group, own[number]) for number, group in enumerate(shown))
        left_out = sum(len(group) for group in ordered[MAX_BOXES:])
        return WaitBoxes(boxes, tuple(links[:MAX_LINKS]), left_out, max(0, len(links) - MAX_LINKS))

    def _classes(self) -> dict[Key, int]:
        """A number for each vertex, equal for similar ones."""
        numbers: dict[object, int] = {}
        found = {key: numbers.setdefault(self._own_key(key), len(numbers)) for key in self._targets}
        for _ in range(DEPTH):
            count = len(numbers)
            numbers = {}
            found = {
                key: numbers.setdefault((found[key], frozenset(found[one] for one in targets)), len(numbers))
                for key, targets in self._targets.items()
            }
            if len(numbers) == count:
                break
        return found

    def _own_key(self, key: Key) -> object:
        alike: object
        if isinstance(key, UnknownKey):  # its name may have an id
            alike = key.what, self._vertices[key].waker_of
        else:
            alike = similarity_key(self._index, self._vertices[key])
        return (alike, self._outcome(key), self._finding_of.get(key), self._in_cycles.get(key))

    def _outcome(self, key: Key) -> Outcome:
        vertex = self._vertices[key]
        if vertex.never is not None:
            return "never"
        if not vertex.is_counted:
            return "helper"
        return self._outcome_of.get(key) or ("waits" if vertex.wait is not None else "runs")

    def _place(self, group: Sequence[Key]) -> tuple[object, ...]:
        first = group[0]
        number = self._finding_of.get(first)
        last = len(self._vertices)
        return (
            last if number is None else number,
            self._in_cycles.get(first, last),
            ORDER[self._outcome(first)],
            -len(group),
            str(first),
        )

    def _box(self, group: Sequence[Key], own: int) -> WaitBox:
        first = group[0]
        return WaitBox(
            tuple(group), self._outcome(first), self._finding_of.get(first), self._any_of(self._vertices[first]), own
        )

    def _any_of(self, vertex: Vertex) -> tuple[int, int] | None:
        """Of the first group with a choice: how many it needs, and of how many."""
        seen: set[Key] = set()
        while vertex.wait is not None and vertex.key not in seen:
            seen.add(vertex.key)
            for group in vertex.wait.groups:
                if 0 < group.needs < len(group.targets):
                    return group.needs, len(group.targets)
            targets = unique(targets_of(vertex))
            if len(targets) != 1 or not self._is_passed(targets[0]):
                break
            vertex = self._vertices[targets[0]]
        return None

    def _links(self, box_of: Mapping[Key, int]) -> tuple[list[WaitLink], Counter[int]]:
        """The links, deadlocked ones first, and the numbers of dependencies within each box."""
        found: dict[tuple[int, int], WaitLink] = {}
        own: Counter[int] = Counter()
        for key, number in box_of.items():
            for target in self._targets[key]:
                other = box_of.get(target)
                if other == number:
                    own[number] += 1
                elif other is not None:
                    link = WaitLink(number, other, self._is_deadlocked(key, target), (key, target) in self._cycle_pairs)
                    found[number, other] = max(found.get((number, other), link), link, key=_weight)
        return sorted(
            found.values(), key=lambda link: (*(-one for one in _weight(link)), link.source, link.target)
        ), own

    def _is_deadlocked(self, key: Key, target: Key) -> bool:
        is_same = self._finding_of.get(key) == self._finding_of.get(target)
        return is_same and self._outcome_of.get(key) == "deadlock" == self._outcome_of.get(target)


def _weight(link: WaitLink) -> tuple[bool, bool]:
    return link.is_in_cycle, link.is_deadlocked


def to_networkx(diagnosis: Diagnosis) -> nx.MultiDiGraph[str]:
    """The wait-for graph: an edge from each waiter to each of its dependencies.

    Nodes are the stable text of vertex keys, as in ``check --json``. Their attributes are ``label`` and ``kind``, and
    of waiters ``wait`` (the kind of wait), ``evidence`` and ``timeout_s`` if there is one. Edges have ``group``, the
    number of the group of dependencies, and ``needs``: how many of that group the wait needs. A cycle alone is no
    deadlock if a group needs fewer than all; the deadlocks are in ``diagnosis.findings``.
    """
    import networkx as nx  # takes 0.1 s

    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for key, vertex in diagnosis.vertices.items():
        graph.add_node(str(key), **_attributes(vertex))
    for key, vertex in diagnosis.vertices.items():
        for number, group in enumerate(vertex.wait.groups if vertex.wait else ()):
            targets = [str(target.vertex) for target in group.targets]
            graph.add_edges_from((str(key), target, {"group": number, "needs": group.needs}) for target in targets)
    return graph


def _attributes(vertex: Vertex) -> dict[str, str | float]:
    """Only values that formats such as GraphML can hold: no None."""
    attributes: dict[str, str | float] = {"label": describe(vertex), "kind": vertex.kind}
    if vertex.wait is not None:
        attributes |= {"wait": vertex.wait.kind, "evidence": vertex.wait.evidence}
        if vertex.wait.timeout_s is not None:
            attributes["timeout_s"] = vertex.wait.timeout_s
    return attributes
