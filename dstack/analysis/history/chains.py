"""Chains of attempts: the way of one item through the steps of a pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dstack.analysis.history.links import Link, Links, find_links
from dstack.analysis.history.task_index import Attempt, HistoryIndex


@dataclass(frozen=True, slots=True)
class Chain:
    """Linked attempts, oldest first; ``number`` counts chains from 1 and is the key of their colour.

    Each attempt but the first has one link to it, so the links form a tree.
    """

    number: int
    attempts: tuple[Attempt, ...]
    links: tuple[Link, ...]

    @property
    def is_inferred(self) -> bool:
        """Whether one of the links is inferred by time."""
        return any(link.basis == "time" for link in self.links)


class Chains:
    """The chains of some attempts; computed when they are asked for."""

    def __init__(self, history: HistoryIndex, attempts: Sequence[Attempt]) -> None:
        self._history = history
        self._attempts = attempts

    @cached_property
    def links(self) -> Links:
        """The links, and how many are not known."""
        return find_links(self._history, self._attempts)

    @cached_property
    def chains(self) -> Sequence[Chain]:
        """The chains of at least two attempts, oldest first."""
        link_to = {id(link.user): link for link in self.links.links}
        trees: dict[int, list[Attempt]] = defaultdict(list)
        for attempt, root in _roots(self._attempts, link_to):
            trees[root].append(attempt)
        long = ((root, tree) for root, tree in trees.items() if len(tree) > 1)
        return [_chain(number, root, tree, link_to) for number, (root, tree) in enumerate(long, 1)]

    def chain_of(self, attempt: Attempt) -> Chain | None:
        """The chain of an attempt, None if it is linked to no other."""
        return self._by_attempt.get(id(attempt))

    @cached_property
    def _by_attempt(self) -> Mapping[int, Chain]:
        return {id(attempt): chain for chain in self.chains for attempt in chain.attempts}


def _chain(number: int, root: int, attempts: Iterable[Attempt], link_to: Mapping[int, Link]) -> Chain:
    members = tuple(attempts)
    return Chain(number, members, tuple(link_to[id(one)] for one in members if id(one) != root))


def _roots(attempts: Iterable[Attempt], link_to: Mapping[int, Link]) -> Iterable[tuple[Attempt, int]]:
    """Each attempt with the first one of its chain; a cycle of links, in corrupt data, ends the search."""
    root_of: dict[int, int] = {}
    for attempt in attempts:
        way: dict[int, None] = {}
        at = attempt
        while id(at) not in root_of and id(at) not in way and (link := link_to.get(id(at))):
            way[id(at)] = None
            at = link.maker
        root = root_of.get(id(at), id(at))
        root_of.update(dict.fromkeys((*way, id(at)), root))
        yield attempt, root
