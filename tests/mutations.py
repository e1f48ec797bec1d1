"""Files and answers as a stranger would change them: by bytes, and by values."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from tests.hostile_text import HOSTILE

ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**53, 2**63, 2**64, 10**30, -(2**63) - 1, 1.5, -1e300, 1e300, float("nan")),
    *(float("inf"), "", "x", "\x00", "f" * 56, "F" * 56, "..", "/dev/zero", "a" * 20_000, HOSTILE, "\ud800", "-5"),
    *([], [[]], [0], [2**40], ["x"] * 2_000, {}, {"a": {}}, {"0": 0}, {"": ""}, {"a": 1e308}),
)
"""Values that are of the wrong type, out of range, or of the right type and mean nothing."""
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
    """The data with some of it changed, left out, doubled or cut."""
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at, to = sorted(chance.randrange(len(data) + 1) for _ in range(2))
        to = min(to, at + chance.choice([1, 1, 8, 1000]))
        piece = chance.choice([chance.choice(PIECES), bytes([chance.randrange(256)]), b"", data[at:to] * 2])
        data = data[:at] + piece + data[to:]
        if chance.random() < 0.05:
            data = data[: chance.randrange(len(data) + 1)]
    return data


class ByValues:
    """Changes of one JSON document; ids are drawn from its own, so that they lead somewhere."""

    def __init__(self, data: bytes) -> None:
        self._original = json.loads(data)
        self._places = list(_places(self._original, ()))
        self._texts = sorted({value for value in self._leaves() if isinstance(value, str)})

    def _leaves(self) -> Iterator[Any]:
        for path in self._places:
            yield _at(self._original, path)

    def one(self, chance: random.Random) -> bytes:
        """The document with a few values changed, swapped, left out or repeated."""
        document = copy.copy(self._original)
        for _ in range(chance.choice([1, 1, 2, 3, 8])):
            self._change(document, chance)
        return json.dumps(document).encode()

    def _change(self, document: Any, chance: random.Random) -> None:
        path = chance.choice(self._places)
        container = document
        for key in path[:-1]:  # what is changed is copied on the way there, and nothing else
            inner = container[key] if _has(container, key) else None
            if not isinstance(inner, dict | list):
                return
            container[key] = copy.copy(inner)
            container = container[key]
        key = path[-1]
        if not _has(container, key):
            return
        match chance.randrange(6):
            case 0:
                del container[key]
            case 1 if isinstance(container, list):
                container += [container[key]] * chance.choice([1, 10, 300])
            case 2 | 3:
                container[key] = _at(self._original, chance.choice(self._places))
            case 4 if self._texts:
                container[key] = chance.choice(self._texts)
            case _:
                container[key] = chance.choice(ODD)


def _has(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else isinstance(key, int) and key < len(container)


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The ways to all that is in a JSON value."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _places(value[key], (*path, key))
