"""py-spy's JSON as plain frames of known types: what a process has in its memory decides what py-spy prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

ADDRESSES = range(2**64)
NUMBERS = range(2**31)
LINES = range(-(2**31), 2**31)
MAX_ITEMS = 100_000
MAX_NAME = 4_096
"""The longest path that Linux knows."""
MAX_REPR = 1_000
"""py-spy itself prints a little over 128 characters of a value."""

RawThread = dict[str, Any]
"""A thread as py-spy prints it: ``os_thread_id``, ``thread_name``, ``active``, ``frames`` leaf first."""

_T = TypeVar("_T")


def threads_of(data: bytes) -> list[RawThread]:
    """The threads of a dump, with only what is used of them. Raises ValueError for what is none; seen on 0.4.3."""
    try:
        return [_thread(one) for one in _items(json.loads(data))]
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _thread(plain: Any) -> RawThread:
    thread = _object(plain)
    return {
        "thread_id": _number(thread.get("thread_id"), ADDRESSES),
        "os_thread_id": _or_none(thread.get("os_thread_id"), lambda one: _number(one, NUMBERS)),
        "thread_name": _or_none(thread.get("thread_name"), _name),
        "active": thread.get("active") is True,
        "frames": [_frame(one) for one in _items(thread.get("frames"))],
    }


def _frame(plain: Any) -> dict[str, Any]:
    frame = _object(plain)
    return {
        "name": _name(frame.get("name")),
        "filename": _name(frame.get("filename")),
        "module": _or_none(frame.get("module"), _name),
        "line": _number(frame.get("line"), LINES),
        "locals": _or_none(frame.get("locals"), lambda found: [_local(one) for one in _items(found)]),
    }


def _local(plain: Any) -> dict[str, Any]:
    local = _object(plain)
    return {
        "name": _name(local.get("name")),
        "addr": _number(local.get("addr"), ADDRESSES),
        "repr": _or_none(local.get("repr"), lambda text: _text(text, MAX_REPR)),
    }


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def _items(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise ValueError("no list, or one without end")
    return value


def _number(value: Any, among: range) -> int:
    if type(value) is not int or value not in among:
        raise ValueError("no number of its kind")
    return value


def _name(value: Any) -> str:
    return _text(value, MAX_NAME)


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return value[:most] if value.isascii() else value[:most].encode(errors="backslashreplace").decode()


def _or_none(value: Any, read: Callable[[Any], _T]) -> _T | None:
    return None if value is None else read(value)
