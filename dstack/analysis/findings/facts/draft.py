"""What the rule of a kind found, before it is put into words, and the facts that follow from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from dstack.analysis.evidence.wait_durations import of_all
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import FailedBefore, FinalBlocker, FindingKind, Progress, Since
from dstack.model.vertex_keys import Key


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
