"""py-spy's JSON as typed threads; it is validated, since the memory of a process decides what py-spy prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from dstack.probes.node.threads import Position, PythonThread, ShownFrame

ADDRESSES = range(2**64)
NUMBERS = range(2**31)
LINES = range(-(2**31), 2**31)
MAX_ITEMS = 100_000
MAX_NAME = 4_096
"""The longest path of Linux."""
MAX_REPR = 1_000
"""py-spy itself prints a little over 128 characters of a value."""

_T = TypeVar("_T")


def threads_of(data: bytes) -> list[PythonThread[ShownFrame]]:
    """The threads of a dump, with the fields that are used. Raises ValueError for malformed JSON; seen on 0.4.3."""
    try:
        return [_thread(one) for one in _items(json.loads(data))]
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _thread(plain: Any) -> PythonThread[ShownFrame]:
    thread = _object(plain)
    return PythonThread(
        thread_id=_number(thread.get("thread_id"), ADDRESSES),
        os_thread_id=_or_none(thread.get("os_thread_id"), lambda one: _number(one, NUMBERS)) or 0,
        name=_or_none(thread.get("thread_name"), _name) or "",
        frames=[_frame(one) for one in _items(thread.get("frames"))],
        is_running=thread.get("active") is True,
    )


def _frame(plain: Any) -> ShownFrame:
    """py-spy gives qualified names from CPython 3.11 on."""
    frame = _object(plain)
    name = _name(frame.get("name"))
    position = Position(
        file=_name(frame.get("filename")),
        function=name.rpartition(".")[2],
        qualified=name,
        line=_number(frame.get("line"), LINES),
        module=_or_none(frame.get("module"), _name),
    )
    found = _or_none(frame.get("locals"), lambda found: [_local(one) for one in _items(found)])
    return ShownFrame(position, dict(found or ()))


def _local(plain: Any) -> tuple[str, str]:
    local = _object(plain)
    return _name(local.get("name")), _or_none(local.get("repr"), lambda text: _text(text, MAX_REPR)) or ""


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise ValueError("not a list, or a list that is too long")
    return value


def _number(value: Any, among: range) -> int:
    if type(value) is not int or value not in among:
        raise ValueError("integer out of range")
    return value


def _name(value: Any) -> str:
    return _text(value, MAX_NAME)


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise ValueError("not a string")
    return value[:most] if value.isascii() else value[:most].encode(errors="backslashreplace").decode()


def _or_none(value: Any, read: Callable[[Any], _T]) -> _T | None:
    return None if value is None else read(value)
