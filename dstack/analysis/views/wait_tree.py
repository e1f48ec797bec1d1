"""The wait-for graph turned round: who holds others up at the top, below each who waits for it, and so on.

At the top stand circles, drawn in their order, and the ends of open chains. Every vertex that waits, or is waited for,
stands in the tree once, by the shortest way from the top; wherever else it waits, it is only named. So the tree is as
large as the graph, however many ways lead through that. Branches are made when somebody looks at them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from dstack import words
from dstack.analysis.evidence.wait_durations import of_any
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.vertex_details import execution_of
from dstack.analysis.solve.digraph import Digraph, strong_components, unique
from dstack.analysis.solve.reduction import shortest_cycle
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Diagnosis, Finding, Since, Vertex
from dstack.model import Frame, Model
from dstack.vertex_keys import Key

Certainty = Literal["exact", "inferred", "assumed"]
Role = Literal["circle", "end", "ring", "waiter", "each", "one"]
Position = Literal["here", "above", "elsewhere"]


class Edge(Model, frozen=True):
    """One wait, from who waits to what for: both are keys of vertices, to jump to.

    ``refs`` are those through which it waits for this target and others told with it, ``awaited`` is how many those
    are. ``needed`` of ``total`` describe the whole call. ``because`` says how it is known, or on what it is assumed,
    where ``evidence`` is not exact. ``stands`` is true where two looks showed it; ``since`` holds for all that are
    folded into one.
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
        """``ray.get``, ``2 of 3``, ``3 min``, ``exact``, ``ref 1a2b3c4d``: whatever there is to say of it, in short."""
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


class WaitBranch(Model, frozen=True):
    """One line of the tree; its ``key`` is the same in every tree of the same cluster, as long as it stands there.

    ``vertices`` are those it stands for, all alike, or those round a ``circle``. ``role`` says what it is: a circle or
    an ``end`` of chains, both at the top; a member of the circle's ``ring``, whose wait is for the next one in it; a
    ``waiter`` for what stands above it; ``each`` of many alike, and ``one`` of these. ``place`` is ``here`` but where
    the vertex is only named: it stands further up, or elsewhere. ``number`` counts the members of a ring from 1, and
    ``follows`` is the number of the one that it waits for. ``finding`` is the number in the diagnosis of the one it is
    about. ``below`` counts all that is below it.
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
        """The vertex that stands for all of them."""
        return self.vertices[0]

    @property
    def count(self) -> int:
        """How many alike it stands for."""
        return 1 if self.role == "circle" else len(self.vertices)


class WaitTree:
    """The tree of one diagnosis. ``roots`` come in the order of its findings, then what is in none of them."""

    def __init__(self, index: SampleIndex, diagnosis: Diagnosis) -> None:
        self._index = index
        self._vertices = diagnosis.vertices
        self._waiters = _waiters(diagnosis.vertices.values())
        self._top_of: dict[Key, WaitBranch] = {}
        self._under: dict[Key, Key] = {}
        self._order: list[Key] = []
        self._number_of: dict[Key, int] = {}
        tops: list[WaitBranch] = []
        for number, finding in enumerate(diagnosis.findings):
            for key in (*finding.members, *finding.helpers, *(one.vertex for one in finding.final_blockers)):
                self._number_of.setdefault(key, number)
            tops += self._grown(self._tops_of(number, finding))
        tops += self._grown(self._tops_of_rest())
        self._below = self._count()
        self.roots = tuple(map(self._with_count, tops))

    def children(self, branch: WaitBranch) -> tuple[WaitBranch, ...]:
        """What stands directly below a branch: alike waiters as one, those with most below them first."""
        if branch.place != "here" or branch.role == "one":
            return ()
        if branch.role == "circle":
            return tuple(self._ring(branch))
        if branch.role == "each":
            return tuple(WaitBranch(key=f"one:{key}", role="one", vertices=(key,)) for key in branch.vertices)
        found = [self._waiter(group, branch) for group in self._alike_below(branch)]
        found.sort(key=lambda child: (child.place != "here", -child.count - child.below))
        if branch.count > 1:
            each = WaitBranch(key=f"each:{branch.first}", role="each", vertices=branch.vertices, expands=True)
            return (*found, each)
        return tuple(found)

    def way_to(self, vertex: Key) -> tuple[WaitBranch, ...]:
        """The branches from the top down to the one where a vertex stands; none where it takes no part in any wait."""
        way = [vertex]
        while way[-1] in self._under:
            way.append(self._under[way[-1]])
        top = self._top_of.get(way[-1])
        if top is None:
            return ()
        branches = [self._with_count(top)]
        if top.role == "circle":
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
        """A deadlock's circle; what is never given; the final blockers of an open chain."""
        if finding.cycle:
            return [self._circle(finding.cycle, number)]
        if finding.final_blockers:
            return self._ends(blocker.vertex for blocker in finding.final_blockers)
        return self._ends(key for key in finding.members if self._vertices[key].never)

    def _tops_of_rest(self) -> Iterator[WaitBranch]:
        """The same of whoever waits and is in no finding, or behind more final blockers than are told."""
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
            yield self._circle(shortest_cycle(own), self._number_of.get(part[0]))
        yield from sorted(self._ends(sorted(ends, key=str)), key=lambda top: top.finding is None)

    def _circle(self, cycle: Sequence[Key], number: int | None) -> WaitBranch:
        return WaitBranch(key=f"circle:{cycle[0]}", role="circle", vertices=tuple(cycle), finding=number, expands=True)

    def _ends(self, keys: Iterable[Key]) -> Iterator[WaitBranch]:
        groups: dict[tuple[object, int | None], list[Key]] = defaultdict(list)
        for key in unique(keys):
            if not self.stands(key):
                groups[self._likeness(key), self._number_of.get(key)].append(key)
        for (_, number), group in groups.items():
            expands = len(group) > 1 or any(self._waiters.get(key) for key in group)
            yield WaitBranch(key=str(group[0]), role="end", vertices=tuple(group), finding=number, expands=expands)

    def _grown(self, tops: Iterable[WaitBranch]) -> list[WaitBranch]:
        """Gives these their places, and everybody who waits for them, through whomever, one by the shortest way."""
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
        """By vertex: how many stand below it, without helpers."""
        below = dict.fromkeys(self._order, 0)
        for key in reversed(self._order):
            if key in self._under:
                below[self._under[key]] += below[key] + self._vertices[key].is_counted
        return below

    def _with_count(self, top: WaitBranch) -> WaitBranch:
        return replace(top, below=sum(self._below[key] for key in top.vertices))

    # What is below

    def _ring(self, circle: WaitBranch) -> Iterator[WaitBranch]:
        members = circle.vertices
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
                finding=circle.finding,
                below=self._below[key],
                expands=any(waiter != before for waiter in self._waiters.get(key, ())),
            )

    def _alike_below(self, branch: WaitBranch) -> Iterator[list[Key]]:
        """Who waits for any of those that a branch stands for; alike are those that wait for the same besides."""
        above = set(branch.vertices)
        groups: dict[object, list[Key]] = defaultdict(list)
        for waiter in unique(waiter for key in branch.vertices for waiter in self._waiters.get(key, ())):
            if branch.role == "ring" and waiter == self._before(branch.first):
                continue
            others = frozenset(targets_of(self._vertices[waiter])) - above
            is_here = self._under.get(waiter) in above
            groups[self._likeness(waiter), others, is_here, waiter if waiter in self._top_of else None].append(waiter)
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
        """Whether another vertex stands on the way from the top to this one, the whole circle counting as on it."""
        while key != other and key in self._under:
            key = self._under[key]
        top = self._top_of.get(key)
        return "above" if key == other or (top and top.role == "circle" and other in top.vertices) else "elsewhere"

    def _edge(self, waiters: Sequence[Key], targets: Collection[Key]) -> Edge:
        vertex = self._vertices[waiters[0]]
        wait = vertex.wait
        assert wait is not None, "a branch waits for the one above it"
        met = [target for group in wait.groups for target in group.targets if target.vertex in targets]
        return Edge(
            waiter=vertex.key,
            target=met[0].vertex,
            kind=wait.call,
            evidence="assumed" if wait.is_suspected else wait.evidence,
            because=words.listed(wait.assumed) or wait.inferred,
            refs=tuple(unique(target.ref for target in met if target.ref)),
            awaited=len({target.vertex for target in met}),
            needed=wait.needed,
            total=wait.total,
            resources=wait.resources,
            timeout_s=wait.timeout_s,
            since=of_any([self._vertices[key].since or Since() for key in waiters]),
            stands=all(self._vertices[key].is_confirmed for key in waiters),
        )

    def _likeness(self, key: Key) -> object:
        """What makes vertices alike but for whom they wait for: what they are called, where they are, in which call."""
        vertex = self._vertices[key]
        wait = vertex.wait
        how = wait and (wait.kind, wait.what, wait.resources, wait.needed, wait.total, wait.timeout_s, wait.evidence)
        return (vertex.kind, vertex.label, vertex.never, vertex.waker_of, vertex.is_confirmed, self._line(vertex), how)

    def _line(self, vertex: Vertex) -> Frame | None:
        execution = execution_of(self._index, vertex)
        return names.user_frame(self._index.snapshot.frames_of(execution)) if execution else None


def _waiters(vertices: Iterable[Vertex]) -> dict[Key, list[Key]]:
    """By vertex: who waits for it, each once."""
    waiters: dict[Key, list[Key]] = defaultdict(list)
    for vertex in vertices:
        for target in unique(targets_of(vertex)):
            waiters[target].append(vertex.key)
    return waiters
