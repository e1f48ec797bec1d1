"""The chain of waits that explains most: from the waiter that is farthest from a final blocker, in the user's code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Vertex
from dstack.vertex_keys import Key


def longest_chain(
    vertices: Mapping[Key, Vertex], waiters: Iterable[Key], end: Key, is_users: Callable[[Key], bool]
) -> list[Key]:
    """The vertices from a waiter to ``end``, by the fewest waits between these two.

    Of the waiters that depend on it, it is one in the user's code, if there is any, and the farthest of these.
    """
    before: dict[Key, list[Key]] = defaultdict(list)
    for key in waiters:
        for target in targets_of(vertices[key]):
            before[target].append(key)
    after: dict[Key, Key | None] = {end: None}
    level = [end]
    farthest, in_users_code = end, None
    while level:
        farthest = level[0]
        found = [(waiter, key) for key in level for waiter in sorted(before[key], key=str) if waiter not in after]
        for waiter, key in found:
            after.setdefault(waiter, key)
        level = list(dict.fromkeys(waiter for waiter, _ in found))
        in_users_code = next(filter(is_users, level), in_users_code)
    return _followed(after, in_users_code or farthest)


def _followed(after: Mapping[Key, Key | None], start: Key) -> list[Key]:
    path: list[Key] = []
    at: Key | None = start
    while at is not None:
        path.append(at)
        at = after[at]
    return path
