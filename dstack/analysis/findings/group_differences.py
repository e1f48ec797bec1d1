"""How the members of a finding's process groups first differ in their collectives, as a value and in words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from dstack import words
from dstack.analysis.findings.group_ranks import GroupRanks, group_wait
from dstack.analysis.graph.group_ledgers import Difference, GroupLedgers, LateRank, arrivals_of
from dstack.analysis.graph.group_members import GroupId, calls_of, group_id
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.model.diagnosis import DifferenceKind, RankDifference, Step
from dstack.observed.calls import ProcessGroup
from dstack.observed.ledgers import Collective
from dstack.observed.processes import Frame

SHOWN_SIZES = 3


class GroupDifferences:
    """The difference of a finding that explains the others, and the words for it."""

    def __init__(self, index: SampleIndex, ranks: GroupRanks) -> None:
        self._index = index
        self._ranks = ranks
        self._ledgers = GroupLedgers(index)

    def first(self) -> RankDifference | None:
        """How members first differ, in the group that explains the differences of others; None if that is unknown."""
        groups = {one.group: one.call.group for one in self._ranks.calls}
        found = [(one, groups[group]) for group in groups if (one := self._of_group(group))]
        if not found:
            return None
        difference, group = min(found, key=lambda one: (self._is_late_elsewhere(one[0]), not one[0].is_clear))
        return self._value(difference, group)

    def _of_group(self, group: GroupId) -> Difference | None:
        """The first difference in a group; of members that are late, that of those which are in no call of a group."""
        calls = [group_wait(vertex).call for one in self._ranks.calls if one.group == group for vertex in one.inside]
        if with_another_root := self._ledgers.with_another_root(calls):
            return with_another_root
        found = self._ledgers.difference(group)
        if found is None or found.kind not in ("behind", "ahead"):
            return found
        free = [rank for rank, worker_id in self._late(found).items() if worker_id not in self._in_calls]
        return self._ledgers.behind(group, free) if free else found

    def _late(self, difference: Difference) -> dict[int, str]:
        """The members that have not entered the collective of a difference, with their workers."""
        members = self._ledgers.members(difference.group)
        return {rank: one.worker_id for rank, one in members.items() if one.ledger.entered < difference.number}

    @cached_property
    def _in_calls(self) -> set[str | None]:
        """The workers of members that are in a call of a group."""
        return {vertex.worker_id for one in self._ranks.calls for vertex in one.inside}

    def is_overdue(self) -> bool:
        """Whether a collective of these groups takes longer than those before."""
        return any(self._ledgers.is_overdue(one.group) for one in self._ranks.calls)

    def _is_late_elsewhere(self, difference: Difference) -> bool:
        """Whether members are late because one of them is in a call of another group."""
        late = set(self._late(difference).values()) if difference.kind in ("behind", "ahead") else set()
        others = (one for one in self._ranks.calls if one.group != difference.group)
        return late <= self._in_calls and not late.isdisjoint(
            {vertex.worker_id or "" for one in others for vertex in one.inside}
        )

    def _value(self, difference: Difference, group: ProcessGroup) -> RankDifference:
        theirs, own = self._place(difference.theirs), self._place(difference.own)
        return RankDifference(
            kind=difference.kind,
            group=group.description or group.name,
            ranks=difference.ranks,
            number=difference.number,
            shift=difference.shift,
            is_clear=difference.is_clear,
            operation=difference.theirs.operation if difference.theirs else "",
            own_operation=difference.own.operation if difference.own else "",
            file=theirs.file if theirs else None,
            line=theirs.line if theirs else None,
            own_file=own.file if own else None,
            own_line=own.line if own else None,
            text="".join(self._in_words(difference, group)),
        )

    def _place(self, collective: Collective | None) -> Frame | None:
        return next(iter(self._ledgers.user_frames(collective)), None) if collective else None

    # Words

    def _in_words(self, one: Difference, group: ProcessGroup) -> Iterator[str]:
        """``rank 2 is 1 collective behind since number 5 (all_reduce at train.py:88)``."""
        of, number = names.process_group(group), f"number {one.number:,}"
        within = f" in {of}" if len({call.group for call in self._ranks.calls}) > 1 else ""
        is_one, shift = len(one.ranks) == 1, words.plural(abs(one.shift), "collective")
        yield f"{names.ranks(one.ranks)} "
        match one.kind:
            case "behind":
                yield f"{'is' if is_one else 'are'} {shift} behind{within} since {number} ({self._call(one.theirs)})"
            case "ahead":
                yield f"{'is' if is_one else 'are'} {shift} ahead{within} since {number} ({self._call(one.own)})"
            case "left out":
                yield f"left out {shift} of {of} from {number} on ({self._call(one.theirs)})"
            case "added":
                yield f"added {shift} to {of} from {number} on ({self._call(one.own)})"
            case _:
                own = self._call(one.own, one.kind)
                yield f"{'calls' if is_one else 'call'} {own} as {number} of {of}, the others "
                yield f"{self._call(one.theirs, one.kind)}{' with another root' if one.kind == 'root' else ''}"
        if not one.is_clear:
            yield ", or as many other ranks are wrong"

    def _call(self, collective: Collective | None, kind: DifferenceKind = "behind") -> str:
        """``all_reduce at train.py:88``, or ``all_reduce of 4 x 8 float32 at train.py:88`` where these differ."""
        if collective is None:
            return "not recorded"
        place = self._place(collective)
        at = f" at {words.base_name(place.file)}:{place.line}" if place else ""
        return f"{collective.operation}{_inputs(collective) if kind in ('sizes', 'types') else ''}{at}"


def group_remarks(index: SampleIndex, job: str | None) -> Iterator[Step]:
    """What the ledgers of a job's groups show beside its findings, or those of all jobs."""
    ledgers = GroupLedgers(index)
    yield from _open_collectives(index, ledgers, job)
    yield from _late_ranks(index, ledgers, job)


def _open_collectives(index: SampleIndex, ledgers: GroupLedgers, job: str | None) -> Iterator[Step]:
    """Collectives that take too long although no thread is in a call that waits for them, as of NCCL's on GPUs."""
    in_calls = {group for group, _ in calls_of(index)}
    for key, group in ledgers.groups():
        members = ledgers.members(key).values()
        workers = (index.workers.get(one.worker_id) for one in members)
        is_asked = job is None or any(worker and worker.job_id == job for worker in workers)
        if key not in in_calls and is_asked and any(one.ledger.open for one in members) and ledgers.is_overdue(key):
            yield Step(text="".join(_open_in_words(ledgers, key, group)))


def _open_in_words(ledgers: GroupLedgers, key: GroupId, group: ProcessGroup) -> Iterator[str]:
    members = ledgers.members(key).values()
    numbers = [number for one in members for number in one.ledger.open]
    first = next(one for one in members if min(numbers) in one.ledger.open)
    since = words.time_of_day(arrivals_of(first)[min(numbers)]) if min(numbers) in arrivals_of(first) else ""
    at = f", entered at {since}," if since else ""
    yield f"Number {min(numbers):,} of {names.process_group(group)}{at} has not ended, in no wait that dstack knows"
    if (difference := ledgers.difference(key)) and difference.ranks:
        are = words.word(len(difference.ranks), "differs", "differ")
        yield f": {names.ranks(difference.ranks)} {are} from the others since number {difference.number:,}"
    elif len(members) == len(group.ranks):
        yield ": all ranks have entered it"


def _late_ranks(index: SampleIndex, ledgers: GroupLedgers, job: str | None) -> Iterator[Step]:
    """The ranks of a job, or of all, that come last nearly always; each in the largest group where it does.

    Times of several hosts are compared only if none is known to have another time.
    """
    groups = sorted(ledgers.groups(), key=lambda one: -len(one[1].ranks))
    found = [(late, group) for key, group in groups if (late := ledgers.late_rank(key))]
    told = set()
    for late, group in found:
        worker = index.workers.get(late.worker_id)
        is_shown = late.worker_id not in told and worker is not None and job in (None, worker.job_id)
        if is_shown and (index.snapshot.has_one_time or _are_on_one_node(index, ledgers, group_id(group))):
            told.add(late.worker_id)
            yield Step(text=_late_in_words(late, group))


def _late_in_words(late: LateRank, group: ProcessGroup) -> str:
    return (
        f"{words.capitalised(names.ranks([late.rank]))} came last in {late.times} of the last {late.of} collectives of "
        f"{names.process_group(group)}: {words.duration(late.late_s)} after the others, where collectives are "
        f"{words.duration(late.every_s)} apart (medians)"
    )


def _are_on_one_node(index: SampleIndex, ledgers: GroupLedgers, group: GroupId) -> bool:
    workers = (index.workers.get(one.worker_id) for one in ledgers.members(group).values())
    return len({worker and worker.node_id for worker in workers}) == 1


def _inputs(collective: Collective) -> str:
    """`` of 4 x 8 float32``: the sizes and types of its inputs."""
    pairs = list(zip(collective.sizes, collective.types, strict=False))
    shown = [f"{' x '.join(map(str, sizes)) or 'one'} {kind}" for sizes, kind in pairs[:SHOWN_SIZES]]
    more = f" and {len(pairs) - SHOWN_SIZES} more" if len(pairs) > SHOWN_SIZES else ""
    return f" of {', '.join(shown)}{more}" if shown else ""
