"""The threads and coroutines that reach the objects of a process's waits, and so may end these waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dstack.observed.calls import Call, ProcessObject
from dstack.probes.node.cached_property import cached_property
from dstack.probes.node.waits.shared_objects import NOTHING, WaitsOn

MAX_DEPTH = 3
"""References from a variable to the object: ``self``, its ``state``, a dict there, the object."""
MAX_REACHED = 256
"""If more threads and coroutines reach an object, none of them is reported."""

THREAD, COROUTINE, ACTOR = "thread", "coroutine", "actor"
Root = tuple[str, int]
"""One of these kinds, and the OS id of a thread or the address of a coroutine or of an actor's instance."""


@dataclass
class Reached:
    """What leads to each object that is waited on; ``waits`` are those of the threads and coroutines.

    ``holders`` are the objects that refer to an object, and ``roots`` what has an object in its variables or globals,
    by the object's address. Each wait is followed back separately: storing all objects that each root reaches
    costs more if thousands of coroutines share an object.
    """

    holders: Mapping[int, Sequence[int]] = field(default_factory=dict)
    roots: Mapping[int, Sequence[Root]] = field(default_factory=dict)
    waits: Mapping[Root, WaitsOn] = field(default_factory=dict)
    _known: dict[tuple[Root | None, WaitsOn], ProcessObject] = field(default_factory=dict)

    def with_reach(self, waiter: Root, call: Call, waits_on: WaitsOn) -> Call:
        """The call with what reaches the objects that it waits on, except the waiter and waiters for the same event."""
        need = call.need
        if not isinstance(need, ProcessObject) or not waits_on.objects:
            return call
        is_known = self.waits.get(waiter, NOTHING).kind == waits_on.kind
        key = None if is_known else waiter, waits_on
        if key not in self._known:
            self._known[key] = self._reach(waiter, waits_on)
        return replace(call, need=replace(self._known[key], object_id=need.object_id))

    def roots_of(self, address: int) -> set[Root]:
        """The threads, coroutines and the actor that reach an object; none if they are too many."""
        found: set[Root] = set()
        for roots in self._roots_of(WaitsOn((address,))):
            found.update(roots)
        return found if len(found) <= MAX_REACHED else set()

    def _reach(self, waiter: Root, waits_on: WaitsOn) -> ProcessObject:
        most = MAX_REACHED + 1 + self._waiters[waits_on.kind]
        found: set[Root] = set()
        for roots in self._roots_of(waits_on):
            if len(roots) > most or len(found) > most:
                return ProcessObject()
            found.update(root for root in roots if self.waits.get(root, NOTHING).kind != waits_on.kind)
        found.discard(waiter)
        if len(found) > MAX_REACHED:
            return ProcessObject()
        return ProcessObject(
            reached_by=tuple(sorted(key for kind, key in found if kind == THREAD)),
            reached_by_coroutines=tuple(hex(key) for key in sorted(key for kind, key in found if kind == COROUTINE)),
            reached_by_actor=any(kind == ACTOR for kind, _ in found),
        )

    @cached_property
    def _waiters(self) -> Counter[tuple[int, str]]:
        """The number of waiters for each kind of event."""
        return Counter(waits_on.kind for waits_on in self.waits.values())

    def _roots_of(self, waits_on: WaitsOn) -> Iterator[Sequence[Root]]:
        """The roots that have one of the objects, or one that leads to it, in their variables or globals."""
        level = set(waits_on.objects)
        seen: set[int] = set()
        for _ in range(MAX_DEPTH + 1):
            seen |= level
            for address in level:
                yield self.roots.get(address, ())
            level = {holder for address in level for holder in self.holders.get(address, ())} - seen
