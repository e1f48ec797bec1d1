"""The answer of a probe as it travels to the caller: JSON, compressed."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import MISSING, Field, fields
from typing import Any

from dstack.observed_calls import Need
from dstack.probes.node import wire

_FIELDS: dict[type, list[tuple[str, object]]] = {}
"""The fields of each class with their defaults."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def packed(answer: wire.Answer | wire.RecordedRound) -> bytes:
    """The answer as compressed JSON; a name that is no valid Unicode has its bytes escaped."""
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), default=_plain)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        data = _SURROGATE.sub(lambda match: rf"\\u{ord(match[0]):04x}", text).encode()
    return zlib.compress(data)


def _plain(value: Any) -> dict[str, Any]:
    """The fields of an observed value, without those that have their default; a need keeps its kind."""
    kind = type(value)
    if kind not in _FIELDS:
        _FIELDS[kind] = [(field.name, _default(field)) for field in fields(kind)]
    given = {name: own for name, default in _FIELDS[kind] if (own := getattr(value, name)) != default}
    return {"kind": value.kind, **given} if isinstance(value, Need) else given


def _default(field: Field[Any]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()
