"""What reaches the objects that the threads and coroutines of a process wait on, and so may end these waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dstack.probes.node.waits.shared_objects import NOTHING, WaitsOn
from dstack.probes.node.wire import Dependencies

MAX_REACHED = 256
"""Where more threads and coroutines than this reach an object, nothing is said of it."""


@dataclass
class Reached:
    """What reaches each object that is waited on, by the object's address.

    ``thread_waits`` and ``coroutine_waits`` are the waits of threads by OS id and of coroutines by address.
    """

    threads: dict[int, set[int]] = field(default_factory=dict)
    coroutines: dict[int, set[int]] = field(default_factory=dict)
    by_actor: set[int] = field(default_factory=set)
    thread_waits: Mapping[int, WaitsOn] = field(default_factory=dict)
    coroutine_waits: Mapping[int, WaitsOn] = field(default_factory=dict)

    def of_thread(self, thread: int, waits_on: WaitsOn) -> Dependencies:
        """What reaches the objects that a thread waits on, besides itself and those that wait for the same."""
        return self._dependencies(waits_on, {thread}, set())

    def of_coroutine(self, coroutine: int, waits_on: WaitsOn) -> Dependencies:
        """What reaches the objects that a coroutine waits on, besides itself and those that wait for the same."""
        return self._dependencies(waits_on, set(), {coroutine})

    def _dependencies(self, waits_on: WaitsOn, threads: set[int], coroutines: set[int]) -> Dependencies:
        found_threads = _others(self.threads, waits_on, self.thread_waits) - threads
        found_coroutines = _others(self.coroutines, waits_on, self.coroutine_waits) - coroutines
        if len(found_threads) + len(found_coroutines) > MAX_REACHED:
            return {}
        found: Dependencies = {}
        if found_threads:
            found["reached_by"] = sorted(found_threads)
        if found_coroutines:
            found["reached_by_coroutines"] = [hex(one) for one in sorted(found_coroutines)]
        if not self.by_actor.isdisjoint(waits_on.objects):
            found["reached_by_actor"] = True
        return found


def _others(reached: Mapping[int, set[int]], waits_on: WaitsOn, waits: Mapping[int, WaitsOn]) -> set[int]:
    found = {one for item in waits_on.objects for one in reached.get(item, ())}
    return {one for one in found if waits.get(one, NOTHING).kind != waits_on.kind}
