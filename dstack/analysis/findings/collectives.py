"""The words about calls on process groups: which ranks are in which call, lost or elsewhere, and the fix."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from dstack import words
from dstack.analysis.findings import meetings
from dstack.analysis.findings.failures import what_happened
from dstack.analysis.findings.finding_facts import FindingFacts
from dstack.analysis.findings.group_ranks import MAX_STEPS, CollectiveCall, failure_of, is_dead, rank_of, worker_of
from dstack.analysis.findings.narration import SHOWN_CALLS, SHOWN_ERROR, SHOWN_PARTS, Narrator, more
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.graph.group_members import GroupId, is_between_two
from dstack.analysis.graph.meetings import is_meeting
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe, in_words
from dstack.analysis.naming.sentences import fails_in, step_at
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import Step, Vertex
from dstack.observed.calls import DATA, ProcessGroup


def headline(facts: FindingFacts) -> str | None:
    """``ranks 0-2 are in all_reduce of group dp; rank 3 is in ray.get for R.score, which calls rank 0``."""
    ranks = facts.ranks
    if not ranks.calls:
        return None
    if (kept_apart := meetings.headline(facts)) is not None:
        return kept_apart
    if ranks.lost:
        lost = (_why_absent(facts.reduced, vertex) for vertex in ranks.lost)
        return "; ".join((*lost, *_calls_in_words(ranks.calls, ("waits", "wait"))))
    idle = (_why_absent(facts.reduced, vertex) for vertex in ranks.idle)
    parts = [*_calls_in_words(ranks.calls, ("is", "are")), *_elsewhere_in_words(facts), *idle]
    omitted = f"; and {len(parts) - SHOWN_PARTS} more" if len(parts) > SHOWN_PARTS else ""
    return "; ".join(parts[:SHOWN_PARTS]) + omitted


def steps(facts: FindingFacts, narrator: Narrator) -> Iterator[Step]:
    """Each call with the ranks in it and the place of the first, then the ranks that are lost or idle."""
    calls = [one for one in facts.ranks.calls if one.missing]
    yield from (_step(one, facts.ranks.caller(one.inside[0]), narrator) for one in calls[:SHOWN_CALLS])
    yield from more(len(calls) - SHOWN_CALLS, "such calls")
    yield from absent_steps(facts)


def with_ranks(facts: FindingFacts, steps_: Iterable[Step]) -> Iterator[Step]:
    """The steps, with the ranks of executions that others wait for in a call on a group."""
    ranks = {vertex.key: missing_rank(facts, vertex, rank) for vertex, rank in facts.ranks.elsewhere}
    for step in steps_:
        rank = ranks.get(step.vertex) if step.vertex else None
        yield step if rank is None else replace(step, text=f"{words.capitalised(rank)}: {step.text}")


def missing_rank(facts: FindingFacts, vertex: Vertex, rank: int) -> str:
    """``rank 3``, ``split 1``; with its group if the finding has ranks of several libraries or runs."""
    return missing_ranks(facts, [rank], facts.ranks.group_of_missing(vertex))


def missing_ranks(facts: FindingFacts, ranks: Sequence[int], group: ProcessGroup | None) -> str:
    """The same for ranks of one group."""
    of = f" of {names.process_group(group)}" if group and facts.ranks.are_of_several_worlds else ""
    return f"{names.ranks(ranks, group)}{of}"


def ranks_of_call(one: CollectiveCall) -> str:
    """``ranks 0-2 of 4``, where the group is made of the first so many ranks."""
    members = one.call.group.ranks
    of = f" of {len(members)}" if members == tuple(range(len(members))) else ""
    return f"{names.ranks(one.ranks, one.call.group)}{of}"


def call_in_words(one: CollectiveCall) -> str:
    """``all_reduce of group dp``; of a group that is being made, with the address at which its members meet."""
    at = f" at {_address(one)}" if is_meeting(one.call) else ""
    return f"{one.operation} of {names.process_group(one.call.group)}{at}"


def _address(one: CollectiveCall) -> str:
    """``10.0.0.1:29500``, and whether nothing listens there."""
    return f"{one.call.group.address}{', where nothing listens' if one.call.is_refused else ''}"


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


def absent_steps(facts: FindingFacts) -> Iterator[Step]:
    """The ranks that are lost or idle, and why."""
    keys = {vertex.key for vertex in (*facts.ranks.lost, *facts.ranks.idle)}
    for vertex in facts.ranks.absent:
        if vertex.key in keys:
            failed = failure_of(facts.reduced, vertex)
            yield Step(
                text=words.capitalised(_why_absent(facts.reduced, vertex)),
                vertex=vertex.key,
                file=failed.file if failed else None,
                line=failed.line if failed else None,
                source=failed.source if failed else None,
            )


def _why_absent(reduced: ReducedGraph, vertex: Vertex) -> str:
    """``rank 1's execute_model raised RuntimeError: ..., and its result may never have been fetched``.

    Of an idle rank: ``rank 2 (actor Rank "b") is idle, and all its possible callers wait for the other ranks``.
    """
    if vertex.never:
        return f"{describe(vertex)} {in_words(vertex.never)}"
    assert vertex.absent is not None, "it stands for an absent rank"
    actor = reduced.index.actors.get(vertex.absent.actor_id or "")
    rank, name = f"rank {vertex.absent.rank}", f" ({names.actor(actor)})" if actor else ""
    if is_dead(vertex):
        cause = ((actor.death_cause if actor else None) or "").partition(". ")[0].removesuffix(".")
        return f"{rank}{name} has died{f': {cause[:SHOWN_ERROR]}' if cause else ''}"
    if failed := failure_of(reduced, vertex):
        fetched = ", and its result may never have been fetched" if failed.is_held else ""
        return f"{rank}'s {failed.name} {what_happened(failed)}{fetched}"
    return f"{rank}{name} is idle, and all its possible callers wait for the other ranks"


def _elsewhere_in_words(facts: FindingFacts) -> Iterator[str]:
    """``rank 3 is in ray.get for Reward.score, which calls rank 0``; ranks in the same words as one."""
    routes = _Routes(facts)
    inside = {vertex.worker_id for one in facts.ranks.calls for vertex in one.inside}
    by_route: dict[tuple[str, str], list[tuple[Vertex, int]]] = defaultdict(list)
    for vertex, rank in facts.ranks.elsewhere:
        if vertex.worker_id not in inside:
            group = facts.ranks.group_of_missing(vertex)
            by_route[routes.in_words(vertex), group.world if group else ""].append((vertex, rank))
    for (route, _), some in by_route.items():
        which = missing_ranks(facts, [rank for _, rank in some], facts.ranks.group_of_missing(some[0][0]))
        yield f"{which} {words.word(len(some), 'is', 'are')} in {route}"


class _Routes:
    """Follows the waits of a finding to the ranks that are in its calls."""

    def __init__(self, facts: FindingFacts) -> None:
        draft = facts.draft
        self._reduced = facts.reduced
        self._keys = {*draft.members, *draft.helpers, *draft.blocked_behind}
        self._rank_of_worker = {one.worker_id: rank_of(one) for call in facts.ranks.calls for one in call.inside}

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
            rank = self._rank_of_worker.get(worker_of(self._reduced.index, vertex))
            if rank is not None:
                return _route_in_words(rank, count, is_queued_call=vertex.worker_id is None)
            vertex = self._next(vertex)
        return ""

    def _next(self, vertex: Vertex) -> Vertex | None:
        """The first target of a vertex that takes part in the finding."""
        return next((self._reduced.vertices[key] for key in targets_of(vertex) if key in self._keys), None)


def _route_in_words(rank: int, count: int, *, is_queued_call: bool) -> str:
    if count == 0:
        return f", {'queued on' if is_queued_call else 'which is'} rank {rank}"
    verb = "calls" if is_queued_call and count == 1 else "waits for" if count == 1 else "indirectly waits for"
    return f", which {verb} rank {rank}"


# The fix


def fix(facts: FindingFacts) -> str | None:
    """How all ranks of a group can enter the same call; None if no member is in a call of a group."""
    ranks = facts.ranks
    if not ranks.calls:
        return None
    if (kept_apart := meetings.apart(facts)) and kept_apart[1]:
        return kept_apart[1]
    if ranks.lost:
        return _fix_for_lost(ranks.lost)
    if for_data := _fix_for_data({one.call.group.library for one in ranks.calls}):
        return for_data
    if any(one.call.transfer for one in ranks.calls):
        return (
            "Let one process request all transfers between these actors, or wait for each transfer before requesting "
            "the next: requests of two callers may arrive in a different order at each actor."
        )
    if ranks.elsewhere and not _are_mixed(ranks.calls):
        return _fix_for_calls(facts)
    return _fix_for_order(ranks.calls)


def _fix_for_lost(lost: Sequence[Vertex]) -> str:
    ranks = names.ranks(sorted({one.absent.rank for one in lost if one.absent}))
    if any(vertex.never for vertex in lost):
        return (
            f"Make the same calls on all ranks, the same number of times: the training function of {ranks} ended "
            "without these. Check it for a branch on the rank, an early return or a shorter loop."
        )
    if any(map(is_dead, lost)):
        return (
            f"Restart all ranks of the group: {ranks} died. Fetch the results of all ranks with "
            "ray.wait, so that the first error ends the run, and set a shorter timeout for the group."
        )
    return (
        f"Correct the error of {ranks}. Fetch the results of all ranks with ray.wait (it returns a failed call first), "
        "and end the other ranks on an error (ray.kill, or abort their process group)."
    )


def _fix_for_data(libraries: set[str]) -> str | None:
    """For readers of Data that wait for each other, or for ranks that wait in another library."""
    if libraries == {DATA}:
        return (
            "Read all splits at the same time: start every reader before waiting for one of them (one ray.get for all "
            "calls), and let no reader wait for another before it iterates."
        )
    if DATA in libraries:
        return "Make all ranks read their data and call collectives (such as ray.train.report) in the same order."
    return None


def _are_mixed(calls: Sequence[CollectiveCall]) -> bool:
    """Whether members of one group are in several calls of it."""
    return len({one.group for one in calls}) < len(calls)


def _fix_for_order(calls: Sequence[CollectiveCall]) -> str:
    """For ranks that make different calls, or in a different order."""
    if all(is_between_two(one.call) for one in calls):
        return (
            "Let one rank send while the other receives: order both by rank, or start both with isend and irecv "
            "(batch_isend_irecv) and wait for them afterwards."
        )
    if _are_mixed(calls):
        return (
            f"Call {_operations(calls)} in the same order on all ranks: look for a branch on the rank, an exception, "
            "or a shorter loop before these lines."
        )
    if len(calls) > 1:
        return f"Call {_operations(calls)} in the same order on all ranks."
    missing = calls[0].missing
    return (
        f"Make the same calls in the same order on all ranks: {names.ranks(missing, calls[0].call.group)} "
        f"{words.word(len(missing), 'is', 'are')} missing. Check them for an early return, a handled error, or a "
        "shorter loop."
    )


def _operations(calls: Sequence[CollectiveCall]) -> str:
    """``all_reduce of group tp and broadcast of group dp``."""
    return words.shortly(list(dict.fromkeys(map(call_in_words, calls))), shown=SHOWN_PARTS)


def _fix_for_calls(facts: FindingFacts) -> str:
    """For missing ranks that wait for calls: a rank in a collective runs no other call."""
    ranks, index = facts.ranks, facts.reduced.index
    workers = {vertex.worker_id for one in ranks.calls for vertex in one.inside}
    calls = (vertex for vertex in facts.waits if vertex.worker_id is None)
    queued = words.listed(sorted({describe(one) for one in calls if worker_of(index, one) in workers}), " or ")
    if queued:
        return (
            f"Do not wait for {queued} while its rank is in a collective that needs the caller: fetch the value before "
            f"it, or give {queued} its own concurrency group or thread."
        )
    targets = (key for vertex, _ in ranks.elsewhere for key in targets_of(vertex))
    awaited = sorted({describe(vertex) for vertex in facts.reduced.vertices_of(targets)})
    return (
        f"Enter {_operations(ranks.calls)} and wait for {words.shortly(awaited, shown=SHOWN_PARTS)} in the same order "
        "on all ranks: here each rank waits for what another rank does later."
    )
