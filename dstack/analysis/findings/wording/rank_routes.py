"""What the ranks that are missing from a call on a group wait for, and how that leads to the ranks in the call."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dstack import words
from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.wording.group_ranks import CollectiveCall, GroupRanks, rank_of
from dstack.analysis.findings.wording.narration import Narrator
from dstack.analysis.naming import names
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Vertex
from dstack.model import actor_of_task

MAX_STEPS = 6
"""Waits that are followed from one rank to another."""


def routes_in_words(draft: Draft, narrator: Narrator, ranks: GroupRanks) -> Iterator[str]:
    """``rank 3 is in ray.get for Reward.score, which calls rank 0``; ranks in the same words as one."""
    routes = _Routes(draft, narrator, ranks.calls)
    inside = {vertex.worker_id for one in ranks.calls for vertex in one.inside}
    by_route: dict[str, list[int]] = defaultdict(list)
    for vertex, rank in ranks.elsewhere:
        if vertex.worker_id not in inside:
            by_route[routes.in_words(vertex)].append(rank)
    for route, some in by_route.items():
        yield f"{names.ranks(some)} {words.word(len(some), 'is', 'are')} in {route}"


def worker_of(narrator: Narrator, vertex: Vertex) -> str | None:
    """The worker of an execution, or that of the actor that a call is queued on."""
    if vertex.worker_id is not None:
        return vertex.worker_id
    actor = narrator.index.actors.get(actor_of_task(vertex.task_id) or "" if vertex.task_id else "")
    return actor.worker_id if actor else None


class _Routes:
    """Follows the waits of a finding to the ranks that are in its calls."""

    def __init__(self, draft: Draft, narrator: Narrator, calls: Sequence[CollectiveCall]) -> None:
        self._narrator = narrator
        self._keys = {*draft.members, *draft.helpers, *draft.blocked_behind}
        self._rank_of_worker = {vertex.worker_id: rank_of(vertex) for one in calls for vertex in one.inside}

    def in_words(self, vertex: Vertex) -> str:
        """``ray.get for Reward.score, which calls rank 0``."""
        assert vertex.wait is not None, "members of a finding wait"
        call = vertex.wait.call
        first = self._next(vertex)
        return f"{call} for {first.label}{self._to_rank(first)}" if first else call

    def _to_rank(self, first: Vertex) -> str:
        """``, which calls rank 0``: the first rank in a call that is reached from here; empty if none is."""
        vertex: Vertex | None = first
        for count in range(MAX_STEPS):
            if vertex is None:
                return ""
            rank = self._rank_of_worker.get(worker_of(self._narrator, vertex))
            if rank is not None:
                return _in_words(rank, count, is_queued_call=vertex.worker_id is None)
            vertex = self._next(vertex)
        return ""

    def _next(self, vertex: Vertex) -> Vertex | None:
        """The first target of a vertex that takes part in the finding."""
        return next((self._narrator.vertices[key] for key in targets_of(vertex) if key in self._keys), None)


def _in_words(rank: int, count: int, *, is_queued_call: bool) -> str:
    if count == 0:
        return f", {'queued on' if is_queued_call else 'which is'} rank {rank}"
    verb = "calls" if is_queued_call and count == 1 else "waits for" if count == 1 else "indirectly waits for"
    return f", which {verb} rank {rank}"
