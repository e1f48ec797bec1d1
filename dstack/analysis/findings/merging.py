"""One finding for one cause: which open chains end in the same cause, and which failures are in another finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dstack.analysis.findings.facts.draft import Draft
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.index.ray_libraries import part
from dstack.analysis.naming.descriptions import describe
from dstack.analysis.naming.vertex_details import details_of
from dstack.analysis.solve.digraph import Digraph, weak_components
from dstack.analysis.solve.open_chains import OpenChain
from dstack.analysis.solve.requirements import targets_of
from dstack.model.diagnosis import FinalBlocker, Vertex
from dstack.model.vertex_keys import Key
from dstack.words import grouped


def by_cause(reduced: ReducedGraph, drafts: Sequence[Draft]) -> list[list[Draft]]:
    """The drafts about open chains; those of one kind and job that have one cause are together.

    They end in the same vertices, or in the same line of the same function. Or one ends in code that waits in the
    other. Or one ends in the machinery of a library, and the other in the user's code.
    """
    links: dict[int, list[int]] = {number: [] for number in range(len(drafts))}
    groups = grouped(((draft.kind, draft.jobs), number) for number, draft in enumerate(drafts))
    for numbers in groups.values():
        own = [number for number in numbers if not _is_of_machinery(reduced, drafts[number])]
        for number in numbers if own else ():
            if number not in own:
                links[number].append(own[0])
        first: dict[object, int] = {}
        for number in numbers:
            for cause in _causes(reduced, drafts[number]):
                other = first.setdefault(cause, number)
                if other != number:
                    links[number].append(other)
    parts = weak_components(Digraph(links))
    return list(grouped((parts[number], draft) for number, draft in enumerate(drafts)).values())


def _causes(reduced: ReducedGraph, draft: Draft) -> Iterator[object]:
    """What is equal for drafts of one cause: the ends, what ends of lifetimes depend on, the lines of all ends."""
    yield from draft.ends
    yield from draft.waits
    lifetimes = (end for end in reduced.vertices_of(draft.ends) if end.kind == "lifetime")
    yield from (target for end in lifetimes for target in targets_of(end))
    if draft.ends:
        yield frozenset(_likeness(reduced, end, draft) for end in reduced.vertices_of(draft.ends))


def _likeness(reduced: ReducedGraph, end: Vertex, draft: Draft) -> object:
    """The name and line of a final blocker; of an unknown waker, those of its waiters."""
    if end.waker_of is None:
        details = details_of(reduced.index, end)
        is_known = details.file is not None and reduced.is_in_users_code(end.key)
        return (describe(end), details.file, details.line) if is_known else end.key
    waiters = (one for one in reduced.vertices_of(draft.waits) if end.key in targets_of(one))
    last = next(waiters, None)
    if last is None or not reduced.is_in_users_code(last.key):
        return end.key
    details = details_of(reduced.index, last)
    return end.waker_of, describe(last), details.file, details.line


def _is_of_machinery(reduced: ReducedGraph, draft: Draft) -> bool:
    """Whether a chain ends only in the machinery of a library, which waits for the user's code in ways of its own."""
    return bool(draft.ends) and all(_is_machinery(reduced, end) for end in reduced.vertices_of(draft.ends))


def _is_machinery(reduced: ReducedGraph, end: Vertex) -> bool:
    worker = reduced.index.workers.get(end.worker_id or "")
    actor = reduced.index.actors.get((worker.actor_id if worker else None) or "")
    is_part = actor is not None and part(actor.class_name, actor.name, actor.actor_id) is not None
    return is_part and not reduced.is_in_users_code(end.key)


def joined(drafts: Sequence[Draft]) -> OpenChain:
    """The chain of several drafts, with the final blockers of all."""
    blockers: dict[Key, FinalBlocker] = {}
    for draft in drafts:
        for one in draft.final_blockers:
            blockers.setdefault(one.vertex, one)
    order = sorted(blockers.values(), key=lambda one: -one.waiters_total)
    return OpenChain(sorted({key for draft in drafts for key in draft.waits}, key=str), order)


def absorbed(reduced: ReducedGraph, stuck: Sequence[Draft], opened: Sequence[Draft]) -> tuple[list[Draft], list[Draft]]:
    """Both without the open chains that wait for what never proceeds, or else for any code that can use an actor.

    Their waits poll the finding about what never proceeds.
    """
    finding_of = {key: number for number, draft in enumerate(stuck) for key in (*draft.waits, *draft.behind)}
    pollers: dict[int, list[Key]] = {}
    others: list[Draft] = []
    for draft in opened:
        targets = {target for key in draft.members for target in targets_of(reduced.vertices[key])}
        number = min((finding_of[key] for key in targets if key in finding_of), default=None)
        if number is None or any(end.kind != "lifetime" or end.holder for end in reduced.vertices_of(draft.ends)):
            others.append(draft)
        else:
            pollers.setdefault(number, []).extend(draft.members)
    found = [replace(draft, pollers=tuple(pollers.get(number, ()))) for number, draft in enumerate(stuck)]
    return found, others
