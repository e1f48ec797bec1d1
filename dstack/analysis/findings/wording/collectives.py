"""The words of findings about calls on process groups: which ranks are in which call, or elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from dstack import words
from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.wording.failures import RAISED, SHOWN_ERROR
from dstack.analysis.findings.wording.group_ranks import CollectiveCall, GroupRanks, failure_of, rank_of, ranks_in
from dstack.analysis.findings.wording.narration import Narrator, more
from dstack.analysis.graph.process_groups.calls import GroupId
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe, in_words
from dstack.analysis.naming.sentences import fails_in, step_at
from dstack.analysis.solve.requirements import targets_of
from dstack.diagnosis import Step, Vertex
from dstack.model import actor_of_task
from dstack.observed_calls import DATA

SHOWN_PARTS = 4
SHOWN_CALLS = 8
MAX_STEPS = 6
"""Waits that are followed from one rank to another."""


def headline(draft: Draft, narrator: Narrator) -> str | None:
    """``ranks 0-2 are in all_reduce of group dp; rank 3 is in ray.get for R.score, which calls rank 0``."""
    ranks = ranks_in(draft, narrator)
    if not ranks.calls:
        return None
    if lost := [text for vertex in ranks.absent if (text := why_lost(narrator, vertex))]:
        return "; ".join((*lost, *_calls_in_words(ranks.calls, ("waits", "wait"))))
    idle = (text for vertex in ranks.absent if (text := why_idle(narrator, vertex)))
    parts = [*_calls_in_words(ranks.calls, ("is", "are")), *_elsewhere_in_words(draft, narrator, ranks), *idle]
    omitted = f"; and {len(parts) - SHOWN_PARTS} more" if len(parts) > SHOWN_PARTS else ""
    return "; ".join(parts[:SHOWN_PARTS]) + omitted


def steps(draft: Draft, narrator: Narrator) -> Iterator[Step]:
    """Each call with the ranks in it and the place of the first, then the ranks that are lost or idle."""
    ranks = ranks_in(draft, narrator)
    calls = [one for one in ranks.calls if one.missing]
    yield from (_step(one, ranks.caller(one.inside[0]), narrator) for one in calls[:SHOWN_CALLS])
    yield from more(len(calls) - SHOWN_CALLS, "such calls")
    yield from absent_steps(draft, narrator)


def with_ranks(draft: Draft, narrator: Narrator, steps_: Iterable[Step]) -> Iterator[Step]:
    """The steps, with the ranks of executions that others wait for in a call on a group."""
    ranks = {vertex.key: rank for vertex, rank in ranks_in(draft, narrator).elsewhere}
    for step in steps_:
        rank = ranks.get(step.vertex) if step.vertex else None
        yield step if rank is None else replace(step, text=f"Rank {rank}: {step.text}")


def ranks_of_call(one: CollectiveCall) -> str:
    """``ranks 0-2 of 4``, where the group is made of the first so many ranks."""
    members = one.call.group.ranks
    of = f" of {len(members)}" if members == tuple(range(len(members))) else ""
    return f"{names.ranks(one.ranks, one.call.group)}{of}"


def call_in_words(one: CollectiveCall) -> str:
    """``all_reduce of group dp``."""
    return f"{one.operation} of {names.process_group(one.call.group)}"


def _calls_in_words(calls: Sequence[CollectiveCall], verbs: tuple[str, str]) -> list[str]:
    """``ranks 0-1 are in all_reduce and ranks 2-3 in broadcast of group default_pg``, for each group."""
    by_group: dict[GroupId, list[CollectiveCall]] = defaultdict(list)
    for one in calls:
        by_group[one.group].append(one)
    group_names = [names.process_group(some[0].call.group) for some in by_group.values()]
    texts = []
    for name, some in zip(group_names, by_group.values(), strict=True):
        if some[0].call.group.library == DATA:
            texts.append(_splits_in_words(some[0]))
            continue
        of = f"{name} ({names.ranks(some[0].call.group.ranks)})" if group_names.count(name) > 1 else name
        first = f"{names.ranks(some[0].ranks)} {verbs[len(some[0].ranks) > 1]} in {some[0].operation}"
        others = (f"{names.ranks(one.ranks)} in {one.operation}" for one in some[1:])
        texts.append(f"{words.listed([first, *others])} of {of}")
    return texts


def _splits_in_words(one: CollectiveCall) -> str:
    """``split 0 of streaming_split waits until all 2 splits are read; split 1 is not read``."""
    group = one.call.group
    missing = [rank for rank in group.ranks if rank not in one.ranks]
    waits, are = words.word(len(one.ranks), "waits", "wait"), words.word(len(missing), "is", "are")
    return (
        f"{names.ranks(one.ranks, group)} of streaming_split {waits} until all {len(group.ranks)} splits are read, "
        f"and {names.ranks(missing, group)} {are} not read"
    )


def _step(one: CollectiveCall, first: Vertex, narrator: Narrator) -> Step:
    """``Ranks 0-2 are in all_reduce of group dp, and wait for rank 3``, and where the first of them is."""
    count, details = len(one.inside), narrator.details(first)
    parts = (
        f"{words.capitalised(ranks_of_call(one))} {words.word(count, 'is', 'are')} in {call_in_words(one)}, ",
        f"and {words.word(count, 'waits', 'wait')} for {names.ranks(one.missing, one.call.group)}",
        fails_in(narrator.index, one.call),
        f"; {'it is' if count == 1 else 'the first of them is'} {describe(first)}",
        f" ({details.place})" if details.place else "",
    )
    return step_at("".join(parts), details, first)


def absent_steps(draft: Draft, narrator: Narrator) -> Iterator[Step]:
    """The ranks that are lost or idle, and why."""
    for vertex in ranks_in(draft, narrator).absent:
        if text := why_lost(narrator, vertex) or why_idle(narrator, vertex):
            yield _step_of_absent(narrator, vertex, text)


def why_lost(narrator: Narrator, vertex: Vertex) -> str | None:
    """``rank 1's execute_model raised RuntimeError: ..., and its result may never have been fetched``."""
    absent = vertex.absent
    if absent is None:
        return None
    if vertex.never:
        return f"{describe(vertex)} {in_words(vertex.never)}"
    if absent.is_dead:
        actor = narrator.index.actors.get(absent.actor_id or "")
        cause = ((actor.death_cause if actor else None) or "").partition(". ")[0].removesuffix(".")
        name = f" ({names.actor(actor)})" if actor else ""
        return f"rank {absent.rank}{name} has died{f': {cause[:SHOWN_ERROR]}' if cause else ''}"
    failed = failure_of(narrator.reduced, vertex)
    if failed is None:
        return None
    verb = "raised" if failed.error_type == RAISED else "failed:"
    fetched = ", and its result may never have been fetched" if failed.is_held else ""
    return f"rank {absent.rank}'s {failed.name} {verb} {(failed.error or failed.error_type)[:SHOWN_ERROR]}{fetched}"


def why_idle(narrator: Narrator, vertex: Vertex) -> str | None:
    """``rank 2 (actor Rank "b") is idle, and all its possible callers wait for the other ranks``."""
    absent = vertex.absent
    if absent is None or not absent.is_idle:
        return None
    actor = narrator.index.actors.get(absent.actor_id or "")
    name = f" ({names.actor(actor)})" if actor else ""
    return f"rank {absent.rank}{name} is idle, and all its possible callers wait for the other ranks"


def _step_of_absent(narrator: Narrator, vertex: Vertex, text: str) -> Step:
    failed = failure_of(narrator.reduced, vertex)
    return Step(
        text=words.capitalised(text),
        vertex=vertex.key,
        file=failed.file if failed else None,
        line=failed.line if failed else None,
        source=failed.source if failed else None,
    )


def _elsewhere_in_words(draft: Draft, narrator: Narrator, ranks: GroupRanks) -> Iterator[str]:
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
        return f"{call} for {describe(first)}{self._to_rank(first)}" if first else call

    def _to_rank(self, first: Vertex) -> str:
        """``, which calls rank 0``: the first rank in a call that is reached from here; empty if none is."""
        vertex: Vertex | None = first
        for count in range(MAX_STEPS):
            if vertex is None:
                return ""
            rank = self._rank_of_worker.get(worker_of(self._narrator, vertex))
            if rank is not None:
                return _route_in_words(rank, count, is_queued_call=vertex.worker_id is None)
            vertex = self._next(vertex)
        return ""

    def _next(self, vertex: Vertex) -> Vertex | None:
        """The first target of a vertex that takes part in the finding."""
        return next((self._narrator.vertices[key] for key in targets_of(vertex) if key in self._keys), None)


def _route_in_words(rank: int, count: int, *, is_queued_call: bool) -> str:
    if count == 0:
        return f", {'queued on' if is_queued_call else 'which is'} rank {rank}"
    verb = "calls" if is_queued_call and count == 1 else "waits for" if count == 1 else "indirectly waits for"
    return f", which {verb} rank {rank}"
