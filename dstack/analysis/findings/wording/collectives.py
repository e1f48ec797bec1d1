"""The words of findings about calls on process groups: which ranks are in which call, and which are elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from dstack import words
from dstack.analysis.findings.draft import Draft
from dstack.analysis.findings.wording.absent_ranks import absent_steps, why_idle, why_lost
from dstack.analysis.findings.wording.group_ranks import CollectiveCall, ranks_in
from dstack.analysis.findings.wording.narration import Narrator, more
from dstack.analysis.findings.wording.rank_routes import routes_in_words
from dstack.analysis.graph.process_groups.calls import GroupId
from dstack.analysis.naming import names
from dstack.analysis.naming.sentences import fails_in, step_at
from dstack.diagnosis import Step, Vertex
from dstack.model import DATA
from dstack.vertex_keys import Key

SHOWN_PARTS = 4
SHOWN_CALLS = 8


def described(draft: Draft, narrator: Narrator) -> set[Key]:
    """The vertices that the steps about calls on groups describe."""
    return ranks_in(draft, narrator).described


def headline(draft: Draft, narrator: Narrator) -> str | None:
    """``ranks 0-2 are in all_reduce of group dp; rank 3 is in ray.get for Reward.score, which calls rank 0``."""
    ranks = ranks_in(draft, narrator)
    if not ranks.calls:
        return None
    if lost := [text for vertex in ranks.absent if (text := why_lost(narrator, vertex))]:
        return "; ".join((*lost, *_calls_in_words(ranks.calls, ("waits", "wait"))))
    idle = (text for vertex in ranks.absent if (text := why_idle(narrator, vertex)))
    parts = [*_calls_in_words(ranks.calls, ("is", "are")), *routes_in_words(draft, narrator, ranks), *idle]
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


def missing_executions(draft: Draft, narrator: Narrator) -> list[Key]:
    """The executions among the members that belong to a missing rank."""
    return [vertex.key for vertex, _ in ranks_in(draft, narrator).elsewhere]


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
        f"; {'it is' if count == 1 else 'the first of them is'} {first.label}",
        f" ({details.place})" if details.place else "",
    )
    return step_at("".join(parts), details, first)
