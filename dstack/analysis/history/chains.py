"""Chains of attempts: the way of one item through the steps of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dstack.analysis.history.task_index import Attempt, HistoryIndex

Basis = Literal["parent", "reference", "time"]
"""Why two attempts are linked: one submitted the other; its result is the only pending argument; inferred by time."""


@dataclass(frozen=True, slots=True)
class Link:
    """``user`` continues what ``maker`` has made, or has been submitted by it."""

    maker: Attempt
    user: Attempt
    basis: Basis


@dataclass(frozen=True, slots=True)
class Chain:
    """Linked attempts, oldest first; ``number`` counts chains from 1 and is the key of their colour."""

    number: int
    attempts: tuple[Attempt, ...]
    links: tuple[Link, ...]


class Chains:
    """The chains of some attempts."""

    def __init__(self, history: HistoryIndex, attempts: Sequence[Attempt]) -> None:
        self._history = history
        self._attempts = attempts

    @property
    def chains(self) -> Sequence[Chain]:
        """The chains of at least two attempts, oldest first."""
        return ()

    def chain_of(self, attempt: Attempt) -> Chain | None:
        """The chain of an attempt, None if it is linked to no other."""
        return None
