"""Shortens JSON documents to a number of characters, and says which items were left out."""

from __future__ import annotations

import json
from typing import Any

LONGEST_LISTS = (50, 20, 10, 5, 2, 1, 0)
"""The lengths to which lists are cut, until the document is small enough."""
LONGEST_TEXT = 2_000
"""Longer texts are cut, as values of local variables are."""

Json = Any
"""A JSON value; a document has any depth."""


def shortened(document: Json, most: int) -> tuple[Json, dict[str, int]]:
    """The document in at most about ``most`` characters, and the number of items left out by the path of their list.

    The result has the shape of the document: only lists and texts are shorter. A path is that of :func:`part`.
    """
    for longest in LONGEST_LISTS:
        left_out: dict[str, int] = {}
        cut = _cut(document, longest, "", left_out)
        if len(json.dumps(cut)) + len(json.dumps(left_out)) <= most:
            break
    return cut, left_out


def part(document: Json, path: str) -> Json:
    """The value at a path such as ``findings.0.members``; raises :class:`KeyError` if there is none."""
    value = document
    for step in path.split("."):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (ValueError, IndexError, KeyError, TypeError):
            raise KeyError(path) from None
    return value


def _cut(value: Json, longest: int, path: str, left_out: dict[str, int]) -> Json:
    if isinstance(value, str):
        return value if len(value) <= LONGEST_TEXT else value[:LONGEST_TEXT] + "…"
    if isinstance(value, dict):
        return {key: _cut(one, longest, _below(path, key), left_out) for key, one in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > longest:
        left_out[path] = len(value) - longest
    return [_cut(one, longest, _below(path, str(at)), left_out) for at, one in enumerate(value[:longest])]


def _below(path: str, step: str) -> str:
    return f"{path}.{step}" if path else step
