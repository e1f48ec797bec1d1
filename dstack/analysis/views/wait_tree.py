"""The wait-for graph as a tree: the blockers at the top, their waiters below them, and so on.

The top level has the cycles, in their order, and the ends of open chains. Every vertex is in the tree once, by the
shortest path from the top; where it also waits for other vertices, it is only named. So the tree is as large as the
graph, however many paths that has. Branches are computed on demand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from dstack import words
from dstack.analysis.evidence.wait_durations import of_any
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.shown_frames import user_frame
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import because_of, describe, in_words
from dstack.analysis.solve.reduction import Digraph, shortest_cycle, strong_components, unique
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Diagnosis, Finding, Group, Since, Target, Vertex
from dstack.model.vertex_facts import assumption
from dstack.model.vertex_keys import Key
from dstack.observed.processes import Frame
from dstack.words import grouped


def similarity_key(index: SampleIndex, vertex: Vertex) -> object:
    """Equal for similar vertices, apart from their targets: by name, line and call."""
    wait = vertex.wait
    how = wait and (
        wait.kind,
        wait.called,
        wait.limit,
        wait.resources,
        wait.needed,
        wait.total,
        wait.timeout_s,
        wait.evidence,
    )
    line = _line(index, vertex)
    never = vertex.never and in_words(vertex.never)
    return (vertex.kind, describe(vertex), never, vertex.waker_of, vertex.is_confirmed, line, how)


def _line(index: SampleIndex, vertex: Vertex) -> Frame | None:
    execution = index.execution_of(vertex)
    return user_frame(index.snapshot.frames_of(execution)) if execution else None


# What is drawn


def as_drawn(index: SampleIndex, diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with waits for unknown code only where the kernel does not name the processes at the other ends.

    Such waits lead to the executions of these processes, as those of the findings do, under the assumption that only
    these end them. What only led there is left out.
    """
    changed = {key: _at_known_ends(index, diagnosis.vertices, vertex) for key, vertex in diagnosis.vertices.items()}
    if all(changed[key] is vertex for key, vertex in diagnosis.vertices.items()):
        return diagnosis
    ahead = [key for key, vertex in changed.items() if vertex.is_counted]
    kept = set(ahead)
    while ahead:
        further = [target for target in targets_of(changed[ahead.pop()]) if target not in kept]
        kept.update(further)
        ahead += further
    findings = (
        msgspec.structs.replace(one, final_blockers=tuple(end for end in one.final_blockers if end.vertex in kept))
        for one in diagnosis.findings
    )
    vertices = {key: vertex for key, vertex in changed.items() if key in kept}
    return msgspec.structs.replace(diagnosis, vertices=vertices, findings=tuple(findings))


def _at_known_ends(index: SampleIndex, vertices: Mapping[Key, Vertex], vertex: Vertex) -> Vertex:
    """The vertex with a wait for the executions at its ends, instead of for unknown code, if all its ends are known."""
    wait = vertex.wait
    if wait is None or not any(vertices[target.vertex].waker_of for target in wait.targets):
        return vertex
    own = (vertex.worker_id, vertex.child_pid)
    connected = (end for end in wait.ends if end.state == "connected")
    places = {place for end in connected for _, place in index.places_of(vertex.worker_id or "", end)} - {own}
    behind = unique(key for target in targets_of(vertex) for key in (target, *targets_of(vertices[target])))
    known = (vertices[key] for key in behind)
    targets = tuple(
        Target(vertex=one.key) for one in known if one.kind == "execution" and (one.worker_id, one.child_pid) in places
    )
    if None in places or not targets:
        return vertex
    drawn = msgspec.structs.replace(
        wait, groups=(Group(needs=1, targets=targets),), total=len(targets), assumed=(assumption("only the ends"),)
    )
    return msgspec.structs.replace(vertex, wait=drawn)


Certainty = Literal["exact", "inferred", "assumed"]
Role = Literal["cycle", "end", "ring", "waiter", "each", "one"]
Position = Literal["here", "above", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Edge:
    """One wait, from the waiter to the target: both are keys of vertices.

    ``refs`` are those through which it waits for this target and similar ones, ``awaited`` counts these targets.
    ``needed`` of ``total`` describe the whole call. ``because`` is the reason or assumption of inexact ``evidence``.
    ``stands`` is true if two samples confirm the wait; ``since`` holds for all waits of the branch.
    """

    waiter: Key
    target: Key
    kind: str
    evidence: Certainty
    because: str | None = None
    refs: tuple[str, ...] = ()
    awaited: int = 1
    needed: int = 1
    total: int = 1
    resources: tuple[str, ...] = ()
    timeout_s: float | None = None
    since: Since | None = None
    stands: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """``ray.get``, ``2 of 3``, ``3 min``, ``exact``, ``ref 1a2b3c4d``: the parts of the description that apply."""
        refs = f"{len(self.refs):,} refs" if len(self.refs) > 1 else "".join(f"ref {names.short(r)}" for r in self.refs)
        parts = (
            self.kind,
            words.listed(self.resources),
            f"{self.needed:,} of {self.total:,}" if self.needed < self.total else "",
            f"timeout {self.timeout_s:g} s" if self.timeout_s is not None else "",
            names.bounds(self.since),
            self.evidence,
            refs,
        )
        return tuple(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class WaitBranch:
    """One line of the tree; its ``key`` is the same in every tree of the same cluster.

    ``vertices`` are similar, or the members of a ``cycle``. The ``role`` at the top is a cycle or an ``end`` of chains.
    Below are a ``ring`` member of a cycle, which waits for the next one; a ``waiter`` for the branch above;
    ``each`` of similar vertices, and ``one`` of these. ``place`` is ``here`` unless the vertex is only named, because
    it is further up or elsewhere. ``number`` counts the members of a cycle from 1, and ``follows`` is the number of the
    next one. ``finding`` is the number of its finding. ``below`` counts all vertices below it.
    """

    key: str
    role: Role
    vertices: tuple[Key, ...]
    edge: Edge | None = None
    place: Position = "here"
    number: int = 0
    follows: int = 0
    finding: int | None = None
    below: int = 0
    expands: bool = False

    @property
    def first(self) -> Key:
        """The vertex that represents the others."""
        return self.vertices[0]

    @property
    def count(self) -> int:
        """The number of similar vertices."""
        return 1 if self.role == "cycle" else len(self.vertices)


class WaitTree:
    """The tree of one diagnosis. ``roots`` are in the order of its findings, then those in no finding."""

    def __init__(self, index: SampleIndex, diagnosis: Diagnosis) -> None:
        diagnosis = as_drawn(index, diagnosis)
        self._index = index
        self._vertices = diagnosis.vertices
        self._waiters = _waiters(diagnosis.vertices.values())
        self._top_of: dict[Key, WaitBranch] = {}
        self._under: dict[Key, Key] = {}
        self._order: list[Key] = []
        self._number_of: dict[Key, int] = {}
        self._children: dict[str, tuple[WaitBranch, ...]] = {}
        tops: list[WaitBranch] = []
        for number, finding in enumerate(diagnosis.findings):
            for key in (*finding.members, *finding.helpers, *(one.vertex for one in finding.final_blockers)):
                self._number_of.setdefault(key, number)
            tops += self._grown(self._tops_of(number, finding))
        tops += self._grown(self._tops_of_rest())
        self._below = self._count()
        self.roots = tuple(map(self._with_count, tops))

    def children(self, branch: WaitBranch) -> tuple[WaitBranch, ...]:
        """The branches directly below: similar waiters as one, the largest first."""
        if branch.key not in self._children:
            self._children[branch.key] = self._children_of(branch)
        return self._children[branch.key]

    def _children_of(self, branch: WaitBranch) -> tuple[WaitBranch, ...]:
        if branch.place != "here" or branch.role == "one":
            return ()
        if branch.role == "cycle":
            return tuple(self._ring(branch))
        if branch.role == "each":
            return tuple(WaitBranch(key=f"one:{key}", role="one", vertices=(key,)) for key in branch.vertices)
        found = [self._waiter(group, branch) for group in self._similar_below(branch)]
        found.sort(key=lambda child: (child.place != "here", -child.count - child.below))
        if branch.count > 1:
            each = WaitBranch(key=f"each:{branch.first}", role="each", vertices=branch.vertices, expands=True)
            return (*found, each)
        return tuple(found)

    def way_to(self, vertex: Key) -> tuple[WaitBranch, ...]:
        """The branches from the top down to that of a vertex; empty if it takes part in no wait."""
        way = [vertex]
        while way[-1] in self._under:
            way.append(self._under[way[-1]])
        top = self._top_of.get(way[-1])
        if top is None:
            return ()
        branches = [self._with_count(top)]
        if top.role == "cycle":
            branches.append(self._among(branches[-1], way[-1]))
        for key in reversed(way[:-1]):
            branches.append(self._among(branches[-1], key))
        return tuple(branches)

    def stands(self, vertex: Key) -> bool:
        """Whether a vertex takes part in any wait."""
        return vertex in self._under or vertex in self._top_of

    def _among(self, branch: WaitBranch, key: Key) -> WaitBranch:
        return next(child for child in self.children(branch) if child.place == "here" and key in child.vertices)

    # The top

    def _tops_of(self, number: int, finding: Finding) -> Iterable[WaitBranch]:
        """The cycle of a deadlock, unsatisfiable members, or the final blockers of an open chain."""
        if finding.cycle:
            return [self._cycle_branch(finding.cycle, number)]
        if finding.final_blockers:
            return self._ends(blocker.vertex for blocker in finding.final_blockers)
        return self._ends(key for key in finding.members if self._vertices[key].never)

    def _tops_of_rest(self) -> Iterator[WaitBranch]:
        """The same for waiters in no finding, and for those behind final blockers that the finding leaves out."""
        ahead = {
            vertex.key: unique(targets_of(vertex))
            for vertex in self._vertices.values()
            if not self.stands(vertex.key) and (vertex.wait or vertex.never)
        }
        for target in unique(target for targets in ahead.values() for target in targets):
            ahead.setdefault(target, [])
        graph = Digraph(ahead)
        ends: list[Key] = []
        for part in strong_components(graph):
            inside = set(part)
            if not all(inside.issuperset(graph.successors(key)) for key in part):
                continue
            if len(part) == 1 and not graph.successors(part[0]):
                ends.append(part[0])
                continue
            own = Digraph({key: graph.successors(key) for key in sorted(part, key=str)})
            yield self._cycle_branch(shortest_cycle(own), self._number_of.get(part[0]))
        yield from sorted(self._ends(sorted(ends, key=str)), key=lambda top: top.finding is None)

    def _cycle_branch(self, cycle: Sequence[Key], number: int | None) -> WaitBranch:
        return WaitBranch(key=f"cycle:{cycle[0]}", role="cycle", vertices=tuple(cycle), finding=number, expands=True)

    def _ends(self, keys: Iterable[Key]) -> Iterator[WaitBranch]:
        groups = grouped(
            ((self._similarity_key(key), self._number_of.get(key)), key) for key in unique(keys) if not self.stands(key)
        )
        for (_, number), group in groups.items():
            expands = len(group) > 1 or any(self._waiters.get(key) for key in group)
            yield WaitBranch(key=str(group[0]), role="end", vertices=tuple(group), finding=number, expands=expands)

    def _grown(self, tops: Iterable[WaitBranch]) -> list[WaitBranch]:
        """Add these and their direct and indirect waiters, each by its shortest path; return those that are new."""
        entered: list[WaitBranch] = []
        for top in tops:
            if not any(map(self.stands, top.vertices)):
                self._top_of.update(dict.fromkeys(top.vertices, top))
                entered.append(top)
        level = [key for top in entered for key in top.vertices]
        while level:
            self._order += level
            following: list[Key] = []
            for key in level:
                for waiter in self._waiters.get(key, ()):
                    if not self.stands(waiter):
                        self._under[waiter] = key
                        following.append(waiter)
            level = following
        return entered

    def _count(self) -> dict[Key, int]:
        """The number of vertices below each, without helpers."""
        below = dict.fromkeys(self._order, 0)
        for key in reversed(self._order):
            if key in self._under:
                below[self._under[key]] += below[key] + self._vertices[key].is_counted
        return below

    def _with_count(self, top: WaitBranch) -> WaitBranch:
        return replace(top, below=sum(self._below[key] for key in top.vertices))

    # What is below

    def _ring(self, cycle: WaitBranch) -> Iterator[WaitBranch]:
        members = cycle.vertices
        for number, key in enumerate(members):
            following = members[(number + 1) % len(members)]
            before = members[number - 1]
            yield WaitBranch(
                key=str(key),
                role="ring",
                vertices=(key,),
                edge=self._edge([key], {following}),
                number=number + 1,
                follows=(number + 1) % len(members) + 1,
                finding=cycle.finding,
                below=self._below[key],
                expands=any(waiter != before for waiter in self._waiters.get(key, ())),
            )

    def _similar_below(self, branch: WaitBranch) -> Iterator[list[Key]]:
        """The waiters for a branch's vertices; similar ones also wait for the same other vertices."""
        above = set(branch.vertices)
        groups: dict[object, list[Key]] = defaultdict(list)
        for waiter in unique(waiter for key in branch.vertices for waiter in self._waiters.get(key, ())):
            if branch.role == "ring" and waiter == self._before(branch.first):
                continue
            others = frozenset(targets_of(self._vertices[waiter])) - above
            is_here = self._under.get(waiter) in above
            groups[self._similarity_key(waiter), others, is_here, waiter if waiter in self._top_of else None].append(
                waiter
            )
        yield from groups.values()

    def _before(self, key: Key) -> Key:
        ring = self._top_of[key].vertices
        return ring[ring.index(key) - 1]

    def _waiter(self, group: Sequence[Key], branch: WaitBranch) -> WaitBranch:
        first, above = group[0], set(branch.vertices)
        place: Position = "here" if self._under.get(first) in above else self._place_seen_from(branch.first, first)
        is_here = place == "here"
        return WaitBranch(
            key=str(first) if is_here else f"{first} under {branch.first}",
            role="waiter",
            vertices=tuple(group),
            edge=self._edge(group, above),
            place=place,
            below=sum(self._below[key] for key in group) if is_here else 0,
            expands=is_here and (len(group) > 1 or any(self._waiters.get(key) for key in group)),
        )

    def _place_seen_from(self, key: Key, other: Key) -> Position:
        """Whether another vertex is on the path from the top to this one, of which the whole cycle is part."""
        while key != other and key in self._under:
            key = self._under[key]
        top = self._top_of.get(key)
        return "above" if key == other or (top and top.role == "cycle" and other in top.vertices) else "elsewhere"

    def _edge(self, waiters: Sequence[Key], targets: Collection[Key]) -> Edge:
        vertex = self._vertices[waiters[0]]
        wait = vertex.wait
        assert wait is not None, "a branch waits for the one above it"
        met = [target for target in wait.all_targets if target.vertex in targets]
        return Edge(
            waiter=vertex.key,
            target=met[0].vertex,
            kind=wait.call,
            evidence="assumed" if wait.is_suspected else wait.evidence,
            because=because_of(wait),
            refs=tuple(unique(target.ref for target in met if target.ref)),
            awaited=len({target.vertex for target in met}),
            needed=wait.needed,
            total=wait.total,
            resources=wait.resources,
            timeout_s=wait.timeout_s,
            since=of_any([self._vertices[key].since or Since() for key in waiters]),
            stands=all(self._vertices[key].is_confirmed for key in waiters),
        )

    def _similarity_key(self, key: Key) -> object:
        return similarity_key(self._index, self._vertices[key])


def _waiters(vertices: Iterable[Vertex]) -> dict[Key, list[Key]]:
    """The waiters by vertex, without duplicates."""
    return grouped((target, vertex.key) for vertex in vertices for target in unique(targets_of(vertex)))
