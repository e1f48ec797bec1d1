"""What comes of values: one of several, an element of a container, the refs in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dstack.probes.node.outlines.definitions import (
    MAX_ITEMS,
    ActorClass,
    Awaitable,
    Class,
    Constant,
    Coroutine,
    Either,
    Function,
    Handle,
    Instance,
    Items,
    Mapping,
    Refs,
    RemoteFunction,
    Value,
)

CHOSEN = (RemoteFunction, ActorClass, Class, Handle, Function)


def joined(values: Iterable[Value], since: int | None = None) -> Value:
    """The value that is one of these.

    Calls of steps from ``since`` on were made under the condition that decides: where the one was not made, another is
    it. With ``since`` None all of them come to be it, one after the other.
    """
    distinct = [*dict.fromkeys(values)]
    if len(distinct) == 1:
        return distinct[0]
    refs = [one for one in distinct if isinstance(one, Refs)]
    if refs:
        return _joined_refs(refs, len(refs) < len(distinct), since)
    items = [one for one in distinct if isinstance(one, Items)]
    if items:
        return Items([element for one in items for element in one.elements][:MAX_ITEMS])
    mappings = [one for one in distinct if isinstance(one, Mapping)]
    if mappings:
        keys = joined((one.keys for one in mappings), since)
        held = joined((one.values for one in mappings), since)
        assert isinstance(keys, Items)
        assert isinstance(held, Items)
        return Mapping(keys, held)
    if distinct and all(isinstance(one, CHOSEN) for one in distinct) and len(distinct) <= MAX_ITEMS:
        return Either(tuple(distinct))
    return None


def _joined_refs(refs: Sequence[Refs], has_others: bool, since: int | None) -> Refs:
    calls = frozenset(call for one in refs for call in one.calls)
    common = calls.intersection(*(one.calls for one in refs)) if not has_others else frozenset()
    is_one_of = since is not None and any(call < since for call in calls - common)
    return Refs(calls, is_one_of or any(one.is_one_of for one in refs), all(one.streams for one in refs))


def choices(value: Value) -> tuple[Value, ...]:
    """The values that it may be."""
    return value.values if isinstance(value, Either) else (value,)


def refs_in(value: Value, depth: int = 0) -> Iterator[Refs]:
    """The refs in a value, also within containers."""
    if isinstance(value, Refs):
        yield value
    elif depth < 4:
        for part in parts_of(value):
            yield from refs_in(part, depth + 1)


def parts_of(value: Value) -> Sequence[Value]:
    """The values within a container or an awaitable."""
    if isinstance(value, Items):
        return value.elements
    if isinstance(value, Mapping):
        return (*value.keys.elements, *value.values.elements)
    if isinstance(value, Awaitable):
        return value.parts
    if isinstance(value, Coroutine):
        return (*value.arguments.all, value.function.owner)
    if isinstance(value, Instance) and not value.is_shared:
        return tuple(value.attributes.values())
    return ()


def element_of(value: Value, *, all_of_them: bool = False) -> Value:
    """An element: any of them, or one after the other."""
    if isinstance(value, Mapping):
        value = value.keys
    if isinstance(value, Items):
        found = joined(value.elements, None)
        distinct = {one.calls for one in value.elements if isinstance(one, Refs)}
        is_any = not all_of_them and len(distinct) > 1
        return replace(found, is_one_of=True) if is_any and isinstance(found, Refs) else found
    if isinstance(value, Refs):
        return Refs() if value.streams else value
    return None


def item_at(value: Value, index: Value) -> Value:
    """The element at an index."""
    if isinstance(value, Mapping):
        return element_of(value.values)
    number = index.value if isinstance(index, Constant) else None
    if isinstance(value, Items) and value.is_fixed and isinstance(number, int):
        return value.elements[number] if -len(value.elements) <= number < len(value.elements) else None
    return element_of(value)
