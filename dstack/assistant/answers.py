"""What the answers to an assistant are made from: numbered snapshots, and documents short enough to read."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.collecting.collector import Collector
from dstack.errors import UsageError
from dstack.model import Snapshot

LONGEST_LISTS = (50, 20, 10, 5, 2, 1, 0)
"""The lengths to which lists are cut, until the document is small enough."""
LONGEST_TEXT = 2_000
"""Longer texts are cut, as values of local variables are."""

Json = Any
"""A JSON value; a document has any depth."""
MAX_KEPT = 5
"""The most snapshots of a running cluster that are kept."""


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


class Snapshots:
    """Snapshots by number, from 1 on; those of files come first. A context manager, which ends the session.

    Methods may be called from several threads; one snapshot is taken at a time.
    """

    def __init__(self, collector: Collector | None, saved: Sequence[Snapshot]) -> None:
        self._collector = collector
        self._saved = len(saved)
        self._kept = dict(enumerate(map(AnalysedSnapshot.of, saved), start=1))
        self._last = self._saved
        self._lock = threading.Lock()

    def __enter__(self) -> Snapshots:
        return self

    def __exit__(self, *_: object) -> None:
        if self._collector is not None:
            self._collector.cancel()

    def new(self) -> int:
        """The number of a new snapshot of the running cluster; without one, of the last file.

        Raises :class:`dstack.ClusterError` if the cluster cannot be read.
        """
        if self._collector is None:
            return self._last
        with self._lock:
            analysed = AnalysedSnapshot.of(self._collector.take())
            self._last += 1
            self._kept[self._last] = analysed
            if (oldest := self._last - MAX_KEPT) > self._saved:
                del self._kept[oldest]
            return self._last

    def last(self) -> int:
        """The number of the newest snapshot; takes one if there is none."""
        return self._last or self.new()

    def get(self, number: int) -> AnalysedSnapshot:
        """The snapshot with a number. Raises :class:`UsageError` if it is not kept."""
        try:
            return self._kept[number]
        except KeyError:
            known = ", ".join(map(str, self._kept)) or "none"
            raise UsageError(f"There is no snapshot {number}.", f"These are kept: {known}.") from None
