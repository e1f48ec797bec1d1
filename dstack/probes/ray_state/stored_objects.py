"""The values in the object store, joined from what all core workers report: owners, uses, places and sums.

Each process that knows a ref reports its own uses. Only the owner reports the state of the task that makes a ref, which
is FINISHED for one of ``ray.put``. A process that only uses a value reports its size, too. Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dstack.model.snapshot import (
    ACTOR_HANDLE,
    KeptSum,
    ObjectSum,
    ObjectUse,
    StoredObject,
    StoredObjects,
    producer_task_id,
)
from dstack.observed.node import IN_STORE, CoreWorkerReply, ObjectPlace, Ref

MAX_SUMS = 100
"""The most sums of each kind."""
MAX_USES = 20
"""The most processes that are listed for one object."""
MAX_INSIDE = 5
"""The most objects that are listed as containing one."""


def stored_objects(replies: Mapping[str, CoreWorkerReply], most: int) -> StoredObjects | None:
    """What these core workers reported of the object store, with the ``most`` largest values; None if of none."""
    reports = _reports(replies.values())
    if not reports:
        return None
    sizes = {ref: max(one.size_bytes for one in of_ref) for ref, of_ref in reports.items()}
    makers = {task_id: name for reply in replies.values() for task_id, name in _names(reply)}
    places = {ref: place for reply in replies.values() for ref, place in reply.places.items()}
    largest = sorted(sizes, key=lambda ref: (-sizes[ref], ref))[:most]
    return StoredObjects(
        total=len(sizes),
        size_bytes=sum(sizes.values()),
        largest=tuple(_object(reports[ref], sizes[ref], makers, places, replies) for ref in largest),
        by_maker=_by_maker(reports, sizes, makers),
        by_process=_by_process(reports, sizes, replies),
    )


def _reports(replies: Iterable[CoreWorkerReply]) -> dict[str, list[Ref]]:
    """By object: all reports of those of which some process knows that they are in the store."""
    found: dict[str, list[Ref]] = {}
    unknown: list[Ref] = []
    for reply in replies:
        for ref in reply.refs:
            if ref.size_bytes >= IN_STORE and not ref.ref.startswith(ACTOR_HANDLE):
                found.setdefault(ref.ref, []).append(ref)
            elif ref.size_bytes < 0:
                unknown.append(ref)
    for ref in unknown:  # a borrower need not know the size
        if ref.ref in found:
            found[ref.ref].append(ref)
    return found


def _names(reply: CoreWorkerReply) -> Iterator[tuple[str, str]]:
    yield from reply.makers.items()
    yield from ((task.task_id, task.name) for task in reply.tasks)


def _owner(reports: Sequence[Ref]) -> str | None:
    return next((one.holder_id for one in reports if one.state is not None), None)


def _is_put(ref: str) -> bool:
    """Whether it is a value of ``ray.put``; these count from 100,000,001."""
    return not ref.endswith("0000")


def _object(
    reports: Sequence[Ref],
    size_bytes: int,
    makers: Mapping[str, str],
    places: Mapping[str, ObjectPlace],
    replies: Mapping[str, CoreWorkerReply],
) -> StoredObject:
    ref = reports[0].ref
    inside = dict.fromkeys(outer for one in reports for outer in one.inside)
    return StoredObject(
        ref=ref,
        size_bytes=size_bytes,
        owner_id=_owner(reports),
        maker=makers.get(producer_task_id(ref), ""),
        is_put=_is_put(ref),
        uses=tuple(_use(one, replies[one.holder_id]) for one in reports[:MAX_USES]),
        inside=tuple(inside)[:MAX_INSIDE],
        place=places.get(ref),
    )


def _use(ref: Ref, reply: CoreWorkerReply) -> ObjectUse:
    return ObjectUse(
        worker_id=ref.holder_id,
        local=max(0, ref.local_uses),
        argument=max(0, ref.argument_uses),
        is_mapped=ref.ref in reply.mapped,
        call_site=ref.call_site,
    )


def _by_maker(
    reports: Mapping[str, list[Ref]], sizes: Mapping[str, int], makers: Mapping[str, str]
) -> tuple[ObjectSum, ...]:
    found: dict[tuple[str, bool, str | None], list[int]] = defaultdict(list)
    for ref, of_ref in reports.items():
        maker = makers.get(producer_task_id(ref), "")
        found[maker, _is_put(ref), None if maker else _owner(of_ref)].append(sizes[ref])
    sums = (
        ObjectSum(objects=len(some), size_bytes=sum(some), maker=maker, is_put=is_put, owner_id=owner)
        for (maker, is_put, owner), some in found.items()
    )
    return tuple(sorted(sums, key=lambda one: -one.size_bytes)[:MAX_SUMS])


def _by_process(
    reports: Mapping[str, list[Ref]], sizes: Mapping[str, int], replies: Mapping[str, CoreWorkerReply]
) -> tuple[KeptSum, ...]:
    """What each process keeps: by variables, arguments, a containing object that it owns, or its use of the value."""
    kept: dict[str, list[int]] = defaultdict(list)
    mapped: dict[str, int] = defaultdict(int)
    for ref, of_ref in reports.items():
        for one in of_ref:
            if one.local_uses or one.argument_uses or one.is_contained:
                kept[one.holder_id].append(sizes[ref])
                mapped[one.holder_id] += sizes[ref] if ref in replies[one.holder_id].mapped else 0
    sums = (
        KeptSum(worker_id=worker_id, objects=len(some), size_bytes=sum(some), mapped_bytes=mapped[worker_id])
        for worker_id, some in kept.items()
    )
    return tuple(sorted(sums, key=lambda one: -one.size_bytes)[:MAX_SUMS])
