"""Waits of one process for each other that look as those of an idle service do, which waits for something from outside.

A consumer in ``queue.get`` and a main thread in ``stop.wait`` can each reach the other's object, so each may end the
other's wait: by what was seen, a cycle. But so do all services at rest. A request, a signal, or a socket of the event
loop ends these waits. That they never end is only plausible where what may end them is stuck elsewhere: in a call to
Ray, a call that does not begin, for a lock, or for an event loop that one of them blocks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from dstack.analysis.graph.coroutines import EVENT_LOOP
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Vertex, Wait
from dstack.model import REF_CALLS
from dstack.vertex_keys import AnyKey, ChildThreadKey, CoroutineKey, Key, ThreadKey, UnknownKey

NOT_IDLE = re.compile(r".*(\.put|\.join|\.acquire|Barrier\.wait)")
"""Waits in which no service rests."""


def idle_links(
    vertices: Mapping[Key, Vertex], enders: Mapping[Key, tuple[Key, ...]], serving: Collection[str] = ()
) -> set[Key]:
    """Of the waits with these ``enders``, which may end them, those that only lead to other waits as of idle services.

    A wait that leads to what proceeds is none of them either: then it is known what will end it. In the workers that
    are ``serving``, idle threads of libraries may have work, so that a blocked event loop is no reason for it.
    """
    ahead: dict[Key, list[Key]] = {key: [] for key in enders}
    unseen = list(enders)
    while unseen:
        key = unseen.pop()
        vertex = vertices.get(key)
        if vertex is None or (key not in enders and not _is_rest(vertex, serving)):
            continue
        ahead[key] = [*enders.get(key, ())] or list(targets_of(vertex))
        for target in ahead[key]:
            if target not in ahead:
                ahead[target] = []
                unseen.append(target)
    known = [key for key in ahead if not isinstance(key, UnknownKey)]
    active = (key for key in known if not _is_at_rest(vertices.get(key), enders, serving))
    return set(enders) - _leading_to(ahead, active)


def _is_at_rest(vertex: Vertex | None, enders: Mapping[Key, tuple[Key, ...]], serving: Collection[str]) -> bool:
    """Whether it waits as idle services do, or for what is in such a wait."""
    if vertex is None or vertex.wait is None or not _is_rest(vertex, serving):
        return False
    return vertex.key not in enders or not NOT_IDLE.fullmatch(vertex.wait.what or vertex.wait.kind)


def _is_rest(vertex: Vertex, serving: Collection[str]) -> bool:
    """Whether it waits inside its own process, for no lock, and not for its event loop, which is blocked."""
    wait = vertex.wait
    if wait is None or wait.is_timed or wait.of_group is not None:
        return False
    if wait.kind in (*REF_CALLS, "lock") or (wait.kind == EVENT_LOOP and vertex.worker_id not in serving):
        return False
    is_inside = isinstance(vertex.key, (ThreadKey, CoroutineKey, ChildThreadKey, AnyKey))
    return is_inside and not any(target.ref for group in wait.groups for target in group.targets)


def may_be_idle(wait: Wait) -> bool:
    """Whether services at rest are in such a wait, which input from outside ends."""
    return wait.is_linked and not NOT_IDLE.fullmatch(wait.what or wait.kind)


def _leading_to(ahead: Mapping[Key, Iterable[Key]], those: Iterable[Key]) -> set[Key]:
    """Those, and all from which any of them is reached."""
    behind: dict[Key, list[Key]] = defaultdict(list)
    for key, targets in ahead.items():
        for target in targets:
            behind[target].append(key)
    found = set(those)
    level = list(found)
    while level:
        level = [key for one in level for key in behind[one] if key not in found]
        found.update(level)
    return found
