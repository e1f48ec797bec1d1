"""The answer of a probe as it travels to the caller: JSON, compressed."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from dstack import observed, observed_calls, observed_node
from dstack.observed_calls import Need
from dstack.observed_node import NodeAnswer, RecordedRound

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


def _as_plain(kind: Any) -> Callable[[Any], dict[str, Any]]:
    """A function from a value of a class to its fields, made as dataclasses make their methods.

    A driver may have a million tasks and refs; a loop over their fields takes twice as long.
    """
    optional = [field for field in fields(kind) if _has_default(field) and not _is_tag(kind, field)]
    stated = ", ".join(f"{field.name!r}: value.{field.name}" for field in fields(kind) if field not in optional)
    body = ["def as_plain(value):", f"    plain = {{{stated}}}", *map(_line, optional)]
    made: dict[str, Any] = {f"of_{field.name}": _default(field) for field in optional}
    exec("\n".join([*body, "    return plain"]), made)
    function: Callable[[Any], dict[str, Any]] = made["as_plain"]
    return function


def _is_tag(kind: Any, field: Field[Any]) -> bool:
    return issubclass(kind, Need) and field.name == "kind"


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _line(field: Field[Any]) -> str:
    """The statement that states a field unless it has its default."""
    condition = "is not None" if _default(field) is None else f"!= of_{field.name}"
    return f"    if value.{field.name} {condition}: plain[{field.name!r}] = value.{field.name}"


# Made where the probe comes from: a class that was pickled by value has other sentinels than those of dataclasses.
_OBSERVED = (*vars(observed).values(), *vars(observed_calls).values(), *vars(observed_node).values())
_AS_PLAIN = {kind: _as_plain(kind) for kind in _OBSERVED if is_dataclass(kind)}
