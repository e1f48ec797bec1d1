"""Blocked calls as plain data, as programs under test print what they wait for."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dstack.call_sites import kind_of, name_of
from dstack.observed.calls import Call, Unreadable


def plain_call(call: Call) -> dict[str, Any]:
    """The kind, name and timeout of a call, and the fields of what it needs that are not empty."""
    needs = {field.name: getattr(call.need, field.name) for field in fields(call.need)}  # type: ignore[arg-type]
    if isinstance(call.need, Unreadable):
        needs["unread"] = needs.pop("reason")
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in needs.items() if value}
    return {**given, "kind": kind_of(call), "what": name_of(call), "timeout_s": call.timeout_s}
