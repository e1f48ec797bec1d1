"""Keys of vertices are equal where their kinds and ids are, whatever their labels are."""

from __future__ import annotations

from dstack.model.vertex_keys import (
    AnyKey,
    ChildThreadKey,
    CoroutineKey,
    DriverKey,
    GroupKey,
    Key,
    TaskKey,
    ThreadKey,
    UnknownKey,
)


def keys() -> list[Key]:
    return [
        ThreadKey("w", 1),
        ThreadKey("w", 2),
        CoroutineKey("w", "1"),
        TaskKey("w"),
        DriverKey("w"),
        GroupKey("w"),
        AnyKey("future", ("w", 1)),
        UnknownKey("thread", ("w", 1)),
        UnknownKey("coroutine", ("w", 1)),
        UnknownKey("target", (ThreadKey("w", 1),)),
        ChildThreadKey("w", 1, 1),
    ]


def test_keys_are_equal_where_their_kinds_and_ids_are() -> None:
    assert keys() == keys()
    assert len({*keys(), *keys()}) == len(keys())


def test_each_key_has_a_unique_text() -> None:
    assert len(set(map(str, keys()))) == len(keys())
