"""What the rule of a kind found, before it is put into words, and the facts that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dstack.analysis.evidence.wait_durations import of_all
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.reduction import Digraph, weak_components
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import FailedBefore, FinalBlocker, FindingKind, Progress, Since, Vertex
from dstack.model.vertex_keys import Key
from dstack.words import grouped


@dataclass(frozen=True, eq=False)
class Draft:
    """A finding without words, as a rule yields it.

    ``waits`` are the vertices that take part, in order. ``behind`` are those that depend on them and can never proceed
    either. Both include helpers (:attr:`Vertex.is_counted`). A draft that ``is_open`` is about waits that may end.
    ``failure`` is the subject of a draft about a failure, and ``pollers`` are waits in loops for what never proceeds.
    The other fields are those of :class:`Finding`.
    """

    reduced: ReducedGraph
    kind: FindingKind
    waits: tuple[Key, ...]
    is_open: bool = False
    confirmed: bool = False
    assumed: tuple[str, ...] = ()
    cycle: tuple[Key, ...] = ()
    behind: tuple[Key, ...] = ()
    final_blockers: tuple[FinalBlocker, ...] = ()
    resources: tuple[str, ...] = ()
    failure: FailedBefore | None = None
    pollers: tuple[Key, ...] = ()

    @cached_property
    def members(self) -> tuple[Key, ...]:
        """The waits without helpers; all of them if there are only helpers."""
        return tuple(filter(self.reduced.is_counted, self.waits)) or self.waits

    @cached_property
    def blocked_behind(self) -> tuple[Key, ...]:
        """What is blocked behind the members, without helpers."""
        return tuple(filter(self.reduced.is_counted, self.behind))

    @cached_property
    def helpers(self) -> tuple[Key, ...]:
        """The helpers among the waits and behind them."""
        return tuple(key for key in (*self.waits, *self.behind) if not self.reduced.is_counted(key))

    @cached_property
    def polled_by(self) -> tuple[Key, ...]:
        """The waits with a timeout for what never proceeds; those of an open chain are its members."""
        if self.is_open:
            return ()
        return tuple(dict.fromkeys((*self.reduced.pollers_of((*self.waits, *self.behind)), *self.pollers)))

    @cached_property
    def ends(self) -> list[Key]:
        """The vertices of the final blockers."""
        return [blocker.vertex for blocker in self.final_blockers]

    @cached_property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that take part."""
        return self.reduced.jobs_of((*self._own, *self.behind, *self.polled_by, *self.ends))

    @property
    def since(self) -> Since:
        """For how long all of the waits have lasted."""
        return of_all([self.reduced.vertices[key].since or Since() for key in self._own])

    @property
    def progress(self) -> Progress | None:
        """What moved in the jobs between the samples."""
        return self.reduced.progress(self.jobs)

    @property
    def watched_s(self) -> float | None:
        """For how long an open chain was watched."""
        return self.reduced.watched_s if self.is_open else None

    @property
    def waiters_direct(self) -> int:
        """How many waits depend on a member directly; of an open chain, on an end of it."""
        if self.is_open:
            return _waiters_for_ends(self.reduced, self.waits)
        return len(self.reduced.directly_behind(self.waits)) + len(self.reduced.pollers_of(self.waits))

    @cached_property
    def waiters_total(self) -> int:
        """How many waits depend on the members; of an open chain, all of its waits."""
        return len(self.members) if self.is_open else len(self.blocked_behind) + len(self.polled_by)

    @property
    def _own(self) -> tuple[Key, ...]:
        return self.members if self.is_open else self.waits


def _waiters_for_ends(reduced: ReducedGraph, waits: Iterable[Key]) -> int:
    """The number of waits for an end of an open chain, directly or through a helper."""
    inside = set(waits)
    helpers = [key for key in inside if not reduced.is_counted(key)]
    leading: set[Key] = set()

    def leads_out(key: Key) -> bool:
        return any(target not in inside or target in leading for target in targets_of(reduced.vertices[key]))

    while new := {key for key in helpers if key not in leading and leads_out(key)}:
        leading |= new
    return sum(reduced.is_counted(key) and leads_out(key) for key in inside)


def by_cause(reduced: ReducedGraph, drafts: Sequence[Draft]) -> list[list[Draft]]:
    """The drafts about open chains; those of one kind and job that have one cause are together.

    They end in the same vertices, or in the same line of the same function. Or one ends in code that waits in the
    other. Or one ends in the machinery of a library, and the other in the user's code.
    """
    links: dict[int, list[int]] = {number: [] for number in range(len(drafts))}
    groups = grouped(((draft.kind, draft.jobs), number) for number, draft in enumerate(drafts))
    for numbers in groups.values():
        own = [number for number in numbers if not _is_of_machinery(reduced, drafts[number])]
        for number in numbers if own else ():
            if number not in own:
                links[number].append(own[0])
        first: dict[object, int] = {}
        for number in numbers:
            for cause in _causes(reduced, drafts[number]):
                other = first.setdefault(cause, number)
                if other != number:
                    links[number].append(other)
    parts = weak_components(Digraph(links))
    return list(grouped((parts[number], draft) for number, draft in enumerate(drafts)).values())


def _causes(reduced: ReducedGraph, draft: Draft) -> Iterator[object]:
    """What is equal for drafts of one cause: the ends, what ends of lifetimes depend on, the lines of all ends."""
    yield from draft.ends
    yield from draft.waits
    lifetimes = (end for end in reduced.vertices_of(draft.ends) if end.kind == "lifetime")
    yield from (target for end in lifetimes for target in targets_of(end))
    if draft.ends:
        yield frozenset(_likeness(reduced, end, draft) for end in reduced.vertices_of(draft.ends))


def _likeness(reduced: ReducedGraph, end: Vertex, draft: Draft) -> object:
    """The name and line of a final blocker; of an unknown waker, those of its waiters."""
    if end.waker_of is None:
        details = details_of(reduced.index, end)
        is_known = details.file is not None and reduced.is_in_users_code(end.key)
        return (describe(end), details.file, details.line) if is_known else end.key
    waiters = (one for one in reduced.vertices_of(draft.waits) if end.key in targets_of(one))
    last = next(waiters, None)
    if last is None or not reduced.is_in_users_code(last.key):
        return end.key
    details = details_of(reduced.index, last)
    return end.waker_of, describe(last), details.file, details.line


def _is_of_machinery(reduced: ReducedGraph, draft: Draft) -> bool:
    """Whether a chain ends only in the machinery of a library, which waits for the user's code in ways of its own."""
    return bool(draft.ends) and all(map(reduced.is_machinery, draft.ends))


def joined(drafts: Sequence[Draft]) -> OpenChain:
    """The chain of several drafts, with the final blockers of all."""
    blockers: dict[Key, FinalBlocker] = {}
    for draft in drafts:
        for one in draft.final_blockers:
            blockers.setdefault(one.vertex, one)
    order = sorted(blockers.values(), key=lambda one: -one.waiters_total)
    return OpenChain(sorted({key for draft in drafts for key in draft.waits}, key=str), order)


def absorbed(reduced: ReducedGraph, stuck: Sequence[Draft], opened: Sequence[Draft]) -> tuple[list[Draft], list[Draft]]:
    """Both without the open chains that wait for what never proceeds, or else for any code that can use an actor.

    Their waits poll the finding about what never proceeds.
    """
    finding_of = {key: number for number, draft in enumerate(stuck) for key in (*draft.waits, *draft.behind)}
    pollers: dict[int, list[Key]] = {}
    others: list[Draft] = []
    for draft in opened:
        targets = {target for key in draft.members for target in targets_of(reduced.vertices[key])}
        number = min((finding_of[key] for key in targets if key in finding_of), default=None)
        if number is None or any(end.kind != "lifetime" or end.holder for end in reduced.vertices_of(draft.ends)):
            others.append(draft)
        else:
            pollers.setdefault(number, []).extend(draft.members)
    found = [replace(draft, pollers=tuple(pollers.get(number, ()))) for number, draft in enumerate(stuck)]
    return found, others
