"""The ledgers of process groups: which collective a member is in, who has entered it, and where members first differ.

The n-th collectives of all members belong together. So a member that has entered as many has entered the call, also if
it did not wait for it, and one that has entered fewer has not. Members that recorded another operation under the same
number, or other sizes where these must be equal, are not in the same call.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from statistics import median

from dstack.analysis.graph.group_members import BETWEEN_TWO, FORMING, UNNAMED, GroupId, group_id
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.diagnosis import DifferenceKind
from dstack.observed.calls import RAY, TORCH, GroupCall, ProcessGroup
from dstack.observed.ledgers import Collective, GroupLedger
from dstack.observed.processes import Frame

MAX_SHIFT = 8
"""The most calls that a member may have left out or added for the lines of later ones to show it."""
WITH_EQUAL_SIZES = (
    *("all_reduce", "broadcast", "reduce", "all_gather_into_tensor", "all_gather_single", "_all_gather_base"),
    *("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"),
)
"""Operations in which the inputs of all members must have as many values, of the same types."""
WITH_EQUAL_SIZES_IN_GLOO = ("all_gather", "reduce_scatter")
"""The same in gloo alone: NCCL's groups accept other sizes (torch 2.13 to 2.15)."""
FEWEST_COLLECTIVES, LATE_TIMES = 8, 0.75
"""A member is late if it came last in such a share of at least so many collectives."""
LATE_S, LATE_SHARE = 0.02, 0.1
"""And by so much after the others, and by such a share of the time between collectives."""
OVERDUE, OVERDUE_S = 3.0, 1.0
"""A collective is overdue after so many times the usual time between two, and so much longer."""
FOR_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""How the operations begin that end for a member only after all members have entered them."""
LIBRARY = "/torch/"
"""The folder of torch in the paths of its files."""


@dataclass(frozen=True)
class MemberLedger:
    """The ledger of one member, and the collectives of its process that it refers to."""

    group: ProcessGroup
    worker_id: str
    ledger: GroupLedger
    collectives: Sequence[Collective]

    @property
    def rank(self) -> int:
        """Its rank in the world."""
        return self.group.rank

    @property
    def first(self) -> int:
        """The number of the first recorded collective."""
        return self.ledger.recorded - len(self.ledger.calls) + 1

    def record(self, number: int) -> Collective | None:
        """The recorded collective of this number."""
        at = number - self.first
        return self.collectives[self.ledger.calls[at]] if 0 <= at < len(self.ledger.calls) else None


@dataclass(frozen=True)
class Difference:
    """How members of a group first differ: the ``ranks`` that do, and the number of their first collective that does.

    ``shift`` is the number of collectives that they have left out (negative) or added by the lines of later ones, or by
    which they are behind or ahead. ``theirs`` and ``own`` are the collectives of this number: of the other members, and
    of the first of these ranks. ``is_clear`` says that these ranks are fewer than the others.
    """

    kind: DifferenceKind
    group: GroupId
    number: int
    ranks: tuple[int, ...]
    shift: int = 0
    theirs: Collective | None = None
    own: Collective | None = None
    is_clear: bool = True


@dataclass(frozen=True)
class LateRank:
    """A member that came last in ``times`` of the last ``of`` collectives, ``late_s`` after the others in the median.

    ``late_s`` counts from the median of the others' arrivals, and ``every_s`` is the median time between collectives.
    """

    rank: int
    worker_id: str
    times: int
    of: int
    late_s: float
    every_s: float


class GroupLedgers:
    """The ledgers of torch's groups by group and rank: of the processes of a sample, or those ``read`` elsewhere."""

    def __init__(self, index: SampleIndex, read: Iterable[MemberLedger] | None = None) -> None:
        self._index = index
        self._read = _of_processes(index) if read is None else read

    @cached_property
    def _members(self) -> dict[GroupId, dict[int, MemberLedger]]:
        """One ledger for each member; none where two processes have the same rank.

        A group has several backends, of which most use one.
        """
        read = [(group_id(own.group), own) for own in self._read]
        used = {(group, own.ledger.backend) for group, own in read if own.ledger.entered}
        found: dict[GroupId, dict[int, list[MemberLedger]]] = defaultdict(lambda: defaultdict(list))
        for group, own in read:
            if (group, own.ledger.backend) in used:
                found[group][own.rank].append(own)
        return {
            group: {rank: several[0] for rank, several in ranks.items() if len(several) == 1}
            for group, ranks in found.items()
        }

    def members(self, group: GroupId) -> Mapping[int, MemberLedger]:
        """The ledgers of a group's members that were read, if all of them count in the same backend."""
        found = self._members.get(group, {})
        return found if len({one.ledger.backend for one in found.values()}) == 1 else {}

    def number_of(self, call: GroupCall) -> int | None:
        """The number of the collective that a call waits in; None where it is unknown, or no collective.

        A wait for one that has begun before may be for any that has not ended: it is at least for the first of these.
        """
        if call.group.library not in (TORCH, RAY) or call.operation in (*BETWEEN_TWO, *FORMING):
            return None
        own = self.members(group_id(call.group)).get(call.group.rank)
        if own is None:
            return None
        if call.operation in UNNAMED:
            return min(own.ledger.open, default=None)
        return own.ledger.entered or None

    def entered(self, call: GroupCall, number: int) -> dict[int, bool]:
        """Whether each other member whose ledger was read has entered the collective that this call waits in.

        If all members have entered as many, and the call still does not end, those that made another call under its
        number have not entered it, and never can.
        """
        members = self.members(group_id(call.group))
        own = members.get(call.group.rank)
        if own is None:
            return {}
        others = {rank: one for rank, one in members.items() if rank != own.rank}
        counted = {rank: one.ledger.entered >= number for rank, one in others.items()}
        if not all(counted.values()) or len(members) < len(call.group.ranks):
            return counted
        return {rank: not _is_another(own, one, number) for rank, one in others.items()}

    def is_for_all(self, call: GroupCall, number: int) -> bool:
        """Whether the collective ends for a member only after all others have entered it."""
        own = self.members(group_id(call.group)).get(call.group.rank)
        record = own.record(number) if own else None
        operation = record.operation if record else call.operation
        return operation.removeprefix("_").startswith(FOR_ALL)

    def difference(self, group: GroupId) -> Difference | None:
        """How the members that were read first differ; None if they do not."""
        members = self.members(group)
        if len(members) < 2:
            return None
        recorded = {rank: one for rank, one in members.items() if one.ledger.calls}
        if len(recorded) < len(members):
            return _of_counts(group, {rank: one.ledger.entered for rank, one in members.items()}, members)
        found = _first_mismatch(group, recorded)
        return (found and self._shift(group, recorded, found)) or found

    def groups(self) -> Iterator[tuple[GroupId, ProcessGroup]]:
        """All groups that have ledgers, each with the membership of one member."""
        for group, members in self._members.items():
            one = next(iter(members.values()), None)
            if one is not None:
                yield group, one.group

    def late_rank(self, group: GroupId) -> LateRank | None:
        """The member that comes last nearly always, and late by a share of the time between collectives."""
        members = self.members(group)
        arrivals = [arrivals_of(one) for one in members.values()]
        numbers = sorted(set(arrivals[0]).intersection(*arrivals[1:])) if len(arrivals) > 1 else []
        if len(numbers) < FEWEST_COLLECTIVES:
            return None
        at = [{rank: times[number] for rank, times in zip(members, arrivals, strict=True)} for number in numbers]
        rank, times = Counter(max(one, key=one.__getitem__) for one in at).most_common(1)[0]
        late = [one[rank] - median(time for other, time in one.items() if other != rank) for one in at]
        every = [later[rank] - earlier[rank] for earlier, later in pairwise(at)]
        found = LateRank(rank, members[rank].worker_id, times, len(numbers), median(late), median(every))
        is_late = found.late_s > max(LATE_S, LATE_SHARE * found.every_s)
        return found if is_late and times >= LATE_TIMES * len(numbers) else None

    def behind(self, group: GroupId, ranks: Sequence[int]) -> Difference:
        """How members differ that have entered fewer collectives than others."""
        members = self.members(group)
        least = min(members[rank].ledger.entered for rank in ranks)
        last = max(members.values(), key=lambda one: one.ledger.entered)
        theirs, own = last.record(least + 1), members[ranks[0]].record(least)
        return Difference("behind", group, least + 1, tuple(ranks), least - last.ledger.entered, theirs, own)

    def with_another_root(self, calls: Sequence[GroupCall]) -> Difference | None:
        """The members of one group that call a collective with another root than others under its number."""
        numbered = [(number, one) for one in calls if one.peer is not None and (number := self.number_of(one))]
        for number in sorted({number for number, _ in numbered}):
            if len({one.peer for at, one in numbered if at == number}) > 1:
                group = group_id(calls[0].group)
                members = self.members(group)
                records = {rank: one.record(number) for rank, one in members.items()}
                lines = {rank: self._line(record) for rank, record in records.items() if record}
                ranks, is_clear = minority(lines) if len(lines) > 1 else ((), False)
                theirs = next((records[rank] for rank in lines if rank not in ranks), None)
                own = records[ranks[0]] if ranks else None
                return Difference("root", group, number, ranks, 0, theirs, own, is_clear) if ranks else None
        return None

    def is_overdue(self, group: GroupId) -> bool:
        """Whether the last collective of a group has begun longer ago than the time between its others explains."""
        last = max(self.members(group).values(), key=lambda one: one.ledger.entered_at or 0.0, default=None)
        if last is None or not last.ledger.entered_at:
            return True
        times = arrivals_of(last).values()
        usual_s = median([later - earlier for earlier, later in pairwise(times)] or [0.0])
        return self._index.snapshot.taken_at - last.ledger.entered_at > OVERDUE * usual_s + OVERDUE_S

    # By the lines of the calls

    def _shift(self, group: GroupId, members: Mapping[int, MemberLedger], found: Difference) -> Difference | None:
        """How ranks that differ were at other lines before, if they were: by how many calls they are off, if known."""
        reference = next(one for rank, one in members.items() if rank not in found.ranks)
        shifts = {rank: self._shift_of(members[rank], reference, found.number) for rank in found.ranks}
        first = min(filter(None, shifts.values()), default=None)
        if first is None:
            return None
        number, shift = first
        ranks = tuple(rank for rank in found.ranks if shifts[rank] == first)
        kind: DifferenceKind = "line" if not shift else "left out" if shift < 0 else "added"
        own, theirs = members[ranks[0]].record(number), reference.record(number)
        return Difference(kind, group, number, ranks, shift, theirs, own, found.is_clear)

    def _shift_of(self, own: MemberLedger, other: MemberLedger, until: int) -> tuple[int, int] | None:
        """From which number on a member is at another line than another one, and by how many calls; 0 if unknown.

        None if it is at no other line before ``until``.
        """
        start = max(own.first, other.first)
        mine, theirs = self._lines(own, start), self._lines(other, start)
        known = set(mine) & set(theirs)
        both = range(min(len(mine), len(theirs), until - start + 1))
        at = next((at for at in both if not _are_alike(mine[at], theirs[at], known)), None)
        if at is None:
            return None
        for shift in range(1, MAX_SHIFT + 1):
            if _all_alike(mine[at:], theirs[at + shift :], known):
                return start + at, -shift
            if _all_alike(mine[at + shift :], theirs[at:], known):
                return start + at, shift
        return (start + at, 0) if start + at < until else None

    def _lines(self, member: MemberLedger, start: int) -> list[_Line]:
        return [self._line(member.collectives[call]) for call in member.ledger.calls[start - member.first :]]

    def _line(self, collective: Collective) -> _Line:
        """By functions, since paths differ between hosts, with those of torch: a layer is called again in reverse."""
        snapshot = self._index.snapshot
        frames = (snapshot.frames[at] for at in snapshot.stacks[collective.stack])
        return collective.operation, tuple((one.function, one.line) for one in frames)

    def user_frames(self, collective: Collective) -> Sequence[Frame]:
        """The frames of the user's own code in its call, leaf first; all but torch's if there are none."""
        snapshot = self._index.snapshot
        frames = [snapshot.frames[at] for at in snapshot.stacks[collective.stack]]
        return [one for one in frames if one.origin == "user"] or [one for one in frames if LIBRARY not in one.file]


def _of_processes(index: SampleIndex) -> Iterator[MemberLedger]:
    for worker_id, worker in index.processes.items():
        for process in worker.family:
            for ledger in process.ledgers:
                group = process.process_groups[ledger.group]
                if group.library in (TORCH, RAY) and group.world:
                    yield MemberLedger(group, worker_id, ledger, process.collectives)


_Line = tuple[str, tuple[tuple[str, int], ...]]
"""The operation of a collective and the functions and lines of its call."""


def _all_alike(mine: Sequence[_Line], theirs: Sequence[_Line], known: Collection[_Line]) -> bool:
    """Whether at least two calls of both are alike, and all of them, the first ones at the same line."""
    is_same = len(mine) > 1 and len(theirs) > 1 and mine[0] == theirs[0]
    return is_same and all(_are_alike(*pair, known) for pair in zip(mine, theirs, strict=False))


def _are_alike(one: _Line, other: _Line, known: Collection[_Line]) -> bool:
    """Whether two calls may belong together: the same line, or lines that only one of the members has."""
    return one == other or (one[0] == other[0] and one not in known and other not in known)


def arrivals_of(member: MemberLedger) -> dict[int, float]:
    """When a member entered its last collectives, by their number."""
    ledger, last = member.ledger, member.ledger.entered_at or 0.0
    first = ledger.recorded - len(ledger.ages_ms) + 1
    return {first + at: last - age / 1e3 for at, age in enumerate(ledger.ages_ms)}


# By what the calls are


def _first_mismatch(group: GroupId, members: Mapping[int, MemberLedger]) -> Difference | None:
    """The first number under which members made different calls, or some none; most members have equal ledgers."""
    keys = {rank: (one.ledger.recorded, one.ledger.calls, one.collectives) for rank, one in members.items()}
    distinct = {keys[rank]: one for rank, one in members.items()}
    last = max(one.ledger.recorded for one in distinct.values())
    for number in range(max(one.first for one in distinct.values()), last + 1):
        contents = {key: _content(one, number) for key, one in distinct.items()}
        if () in contents.values():
            return _of_counts(group, {rank: one.ledger.recorded for rank, one in members.items()}, members)
        if len(set(contents.values())) > 1:
            records = {rank: one.record(number) for rank, one in members.items()}
            return _of_contents(group, number, records, {rank: contents[key] for rank, key in keys.items()})
    return None


def _content(member: MemberLedger, number: int) -> tuple[object, ...]:
    """What must be equal for all members of one collective; empty if it is not recorded."""
    record = member.record(number)
    if record is None:
        return ()
    is_gloo = member.ledger.backend == "gloo"
    if record.operation in WITH_EQUAL_SIZES or (is_gloo and record.operation in WITH_EQUAL_SIZES_IN_GLOO):
        return record.operation, tuple(map(prod, record.sizes)), record.types
    return (record.operation,)


def _is_another(own: MemberLedger, other: MemberLedger, number: int) -> bool:
    """Whether two members have made different calls under a number that counts the same in both records."""
    is_sound = all(one.ledger.recorded == one.ledger.entered for one in (own, other))
    contents = {_content(own, number), _content(other, number)}
    return is_sound and len(contents) > 1 and () not in contents


def _of_contents(
    group: GroupId, number: int, records: Mapping[int, Collective | None], contents: Mapping[int, tuple[object, ...]]
) -> Difference:
    ranks, is_clear = minority(contents)
    theirs = next(record for rank, record in records.items() if rank not in ranks)
    own = records[ranks[0]]
    assert own is not None, "all of them are recorded"
    assert theirs is not None, "all of them are recorded"
    is_operation = own.operation != theirs.operation
    kind: DifferenceKind = "operation" if is_operation else "sizes" if own.sizes != theirs.sizes else "types"
    return Difference(kind, group, number, ranks, theirs=theirs, own=own, is_clear=is_clear)


def _of_counts(group: GroupId, counts: Mapping[int, int], members: Mapping[int, MemberLedger]) -> Difference | None:
    """The members that have entered fewer collectives than the others, or more."""
    if len(set(counts.values())) < 2:
        return None
    least = min(counts.values())
    ranks, is_clear = minority({rank: count > least for rank, count in counts.items()})
    is_behind = counts[ranks[0]] == least
    others = [rank for rank in counts if rank not in ranks]
    further = members[others[0] if is_behind else ranks[0]].record(least + 1)
    shift = least - max(counts.values()) if is_behind else min(counts[rank] for rank in ranks) - least
    kind: DifferenceKind = "behind" if is_behind else "ahead"
    theirs, own = (further, members[ranks[0]].record(least)) if is_behind else (None, further)
    return Difference(kind, group, least + 1, ranks, shift, theirs, own, is_clear)


def minority(values: Mapping[int, object]) -> tuple[tuple[int, ...], bool]:
    """The ranks whose value is not the most frequent one, and whether they are fewer than those that have it.

    Of values that are equally frequent, that of the lowest rank counts as the others'.
    """
    counts = Counter(values[rank] for rank in sorted(values))
    usual, most = counts.most_common(1)[0]
    ranks = tuple(rank for rank in sorted(values) if values[rank] != usual)
    return ranks, len(ranks) < most
