"""Mutations of files and answers: by bytes, and by values."""

from __future__ import annotations

import copy
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tests.fuzzing.hostile_text import HOSTILE

ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**30, -(2**63) - 1, 1.5, -1e300, 1e300, float("nan")),
    *(float("inf"), "", "x", "\x00", "f" * 56, "F" * 56, "..", "/dev/zero", "a" * 20_000, HOSTILE, "\ud800", "-5"),
    *([], [[]], [0], [2**40], ["x"] * 2_000, {}, {"a": {}}, {"0": 0}, {"": ""}, {"a": 1e308}),
)
"""Values of the wrong type, out of range, or of the right type without a meaning."""
PIECES = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b"\\",
    b"\\ud800",
    b"\xff",
    b"\x00",
    b"1e999",
    b"-",
    b"null",
    b"NaN",
]


def by_bytes(data: bytes, chance: random.Random) -> bytes:
    """The data with parts changed, left out, doubled or cut."""
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at, to = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        to = min(to, at + chance.choice([1, 1, 8, 1000]))
        piece = chance.choice([chance.choice(PIECES), bytes([chance.randrange(256)]), b"", data[at:to] * 2])
        data = data[:at] + piece + data[to:]
        if chance.random() < 0.05:
            data = data[: chance.randrange(len(data) + 1)]
    return data


class ByValues:
    """Mutations of one JSON document; most use its own values of the same kind, so that ids refer to something."""

    def __init__(self, data: bytes) -> None:
        self._original = json.loads(data)
        self._places = list(_places(self._original, ()))
        self._by_kind: dict[object, list[Any]] = defaultdict(list)
        for path in self._places:
            self._by_kind[_kind(path, self._at(path))].append(self._at(path))
        self._texts = sorted({text for found in self._by_kind.values() for text in found if isinstance(text, str)})

    def _at(self, path: tuple[Any, ...]) -> Any:
        value = self._original
        for key in path:
            value = value[key]
        return value

    def one(self, chance: random.Random) -> bytes:
        """The document with a few values changed, swapped, left out or repeated."""
        document = copy.copy(self._original)
        for _ in range(chance.choice([1, 2, 3, 5, 10])):
            self._change(document, chance)
        return json.dumps(document).encode()

    def _change(self, document: Any, chance: random.Random) -> None:
        path = chance.choice(self._places)
        container = document
        for key in path[:-1]:  # copy only the containers on the path
            inner = container[key] if _has(container, key) else None
            if not isinstance(inner, dict | list):
                return
            container[key] = copy.copy(inner)
            container = container[key]
        if _has(container, path[-1]):
            self._put(container, path, chance)

    def _put(self, container: Any, path: tuple[Any, ...], chance: random.Random) -> None:
        key = path[-1]
        before = container[key]
        match chance.randrange(12):
            case 0:
                del container[key]
            case 1 if isinstance(container, list):
                container += [before] * chance.choice([1, 10, 300])
            case 2 if isinstance(before, str):
                container[key] = chance.choice([before + HOSTILE, before[:-1], before.upper(), *self._texts])
            case 3 if type(before) in (int, float):
                container[key] = chance.choice([0, 1, -1, 2, before + 1, 2**31, 2**53, 2**63 - 1])
            case 4:
                container[key] = chance.choice(ODD)
            case _:
                container[key] = chance.choice(self._by_kind[_kind(path, before)] or [before])


def _kind(path: tuple[Any, ...], value: Any) -> object:
    """Values with the same key and type are of one kind."""
    return next((key for key in reversed(path) if isinstance(key, str)), ""), isinstance(path[-1], str), type(value)


def _has(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else isinstance(key, int) and key < len(container)


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The paths to all values within a JSON value."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _places(value[key], (*path, key))
