"""The answer of a probe as it travels to the caller: JSON, compressed."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from typing import Any

from dstack.observed.calls import Need
from dstack.observed.node import NodeAnswer, RecordedRound

_SURROGATE = re.compile("[\ud800-\udfff]")


def encoded(answer: NodeAnswer | RecordedRound) -> bytes:
    """The answer as JSON, without fields that have their default.

    A name that is no valid Unicode has its bytes escaped.
    """
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), default=_plain)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda match: rf"\\u{ord(match[0]):04x}", text).encode()


def packed(answer: NodeAnswer | RecordedRound) -> bytes:
    """The encoded answer, compressed."""
    return zlib.compress(encoded(answer))


def _plain(value: Any) -> dict[str, Any]:
    return _AS_PLAIN[value.__class__](value)


class _Functions(dict[type, Callable[[Any], dict[str, Any]]]):
    """By class: a function from a value to its fields, compiled for the first value.

    A driver may have a million tasks and refs; a loop over their fields takes twice as long.
    """

    def __missing__(self, kind: Any) -> Callable[[Any], dict[str, Any]]:
        always = [name for name in kind.__slots__ if name not in kind._factories and not _is_optional(kind, name)]
        optional = [name for name in kind.__slots__ if name not in always]
        made = {f"default_{name}": factory() for name, factory in kind._factories.items()}
        made |= {f"default_{name}": value for name, value in kind._defaults.items()}
        stated = ", ".join(f"{name!r}: value.{name}" for name in always)
        lines = [_line(name, made[f"default_{name}"]) for name in optional]
        exec("\n".join(["def as_plain(value):", f"    plain = {{{stated}}}", *lines, "    return plain"]), made)
        self[kind] = made["as_plain"]
        return self[kind]


def _is_optional(kind: Any, name: str) -> bool:
    """Whether the field has a default that may be left out; the kind of a need is always stated."""
    return name in kind._defaults and not (issubclass(kind, Need) and name == "kind")


def _line(name: str, default: object) -> str:
    """The statement that states a field unless it has its default."""
    condition = "is not None" if default is None else f"!= default_{name}"
    return f"    if value.{name} {condition}: plain[{name!r}] = value.{name}"


_AS_PLAIN = _Functions()
