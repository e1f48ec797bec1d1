"""The chain of waits that explains most: from the farthest waiter in user code to a final blocker."""

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

    The waiter is the farthest one in the user's code; if none is in the user's code, the farthest of all.
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
    return _path(after, in_users_code or farthest)


def _path(after: Mapping[Key, Key | None], start: Key) -> list[Key]:
    path: list[Key] = []
    key: Key | None = start
    while key is not None:
        path.append(key)
        key = after[key]
    return path
