"""How the members of a finding's process groups first differ in their collectives, as a value and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from dstack import words
from dstack.analysis.findings.group_ranks import GroupRanks, group_wait
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.graph.group_ledgers import Difference, GroupLedgers, LateRank, MemberLedger, arrivals_of
from dstack.analysis.graph.group_members import GroupId, calls_of, group_id
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.vertex_details import details_of
from dstack.model.diagnosis import DifferenceKind, RankDifference, Step, Vertex
from dstack.observed.calls import ProcessGroup
from dstack.observed.ledgers import Collective
from dstack.observed.processes import Frame

SHOWN_SIZES, SHOWN_COUNTS = 3, 8
NEW_GROUP = "new_group"
OR_OTHERS = ", or as many other ranks are wrong"


@dataclass(frozen=True)
class _Made:
    """A group that a process has made, or makes in the call of a vertex."""

    group: ProcessGroup
    vertex: Vertex | None = None

    @classmethod
    def by(cls, vertex: Vertex) -> _Made:
        return cls(group_wait(vertex).call.group, vertex)

    @property
    def what(self) -> tuple[tuple[int, ...], str]:
        """What is the same for all members, unlike its number."""
        return self.group.ranks, self.group.description


class GroupDifferences:
    """The difference of a finding that explains the others."""

    def __init__(self, reduced: ReducedGraph, ranks: GroupRanks) -> None:
        self._index = reduced.index
        self._ranks = ranks
        self._ledgers = reduced.ledgers

    @cached_property
    def _groups(self) -> dict[GroupId, ProcessGroup]:
        """The groups of the calls, each with the membership of one caller."""
        return {one.group: one.call.group for one in self._ranks.calls}

    def first(self) -> RankDifference | None:
        """How members first differ, in the group that explains the differences of others; None if that is unknown."""
        if order := self._of_order():
            return order
        found = [(one, group) for key, group in self._groups.items() if (one := self._of_group(key))]
        if not found:
            return None
        difference, group = min(found, key=lambda one: (self._is_late_elsewhere(one[0]), not one[0].is_clear))
        return DifferenceWords(self._ledgers).value(difference, group, has_others=len(self._groups) > 1)

    def _of_order(self) -> RankDifference | None:
        """Members that number the groups that they make in another way than others: they make them in another order."""
        calls = (one for one in self._ranks.calls if one.call.operation == NEW_GROUP)
        making = [_Made.by(vertex) for one in calls for vertex in one.inside]
        if not making or not all(one.group.name.isdecimal() for one in making):
            return None
        made = {(one.group.rank, one.group.name): one for one in (*self._made(making[0].group), *making)}.values()
        against, by_rank = _disagreements(made), Counter[int]()
        for one, count in against:
            by_rank[one.group.rank] += count
        (rank, most), *rest = by_rank.most_common()
        if not most:
            return None
        own = max((count, at) for at, (one, count) in enumerate(against) if one.group.rank == rank)[1]
        return self._order_value(against[own][0], made, is_clear=not rest or rest[0][1] < most)

    def _made(self, group: ProcessGroup) -> Iterator[_Made]:
        """The groups that all members of its world have made, but for the default one."""
        for worker in self._index.processes.values():
            for process in worker.family:
                for one in process.process_groups:
                    is_own = (one.library, one.world) == (group.library, group.world)
                    if is_own and one.name.isdecimal() and one.name != "0":
                        yield _Made(one)

    def _order_value(self, own: _Made, made: Collection[_Made], *, is_clear: bool) -> RankDifference:
        others = [one for one in made if one.what == own.what and one.group.name != own.group.name]
        other = next(iter(others), None)
        mine, theirs = (details_of(self._index, one.vertex) if one and one.vertex else None for one in (own, other))
        at = f" at {words.base_name(mine.file)}:{mine.line}" if mine and mine.file else ""
        of_others = f", group {other.group.name} of {names.ranks(one.group.rank for one in others)}" if other else ""
        return RankDifference(
            kind="order",
            group=own.group.description or own.group.name,
            ranks=(own.group.rank,),
            number=int(own.group.name),
            is_clear=is_clear,
            operation=NEW_GROUP,
            own_operation=NEW_GROUP,
            file=theirs.file if theirs else None,
            line=theirs.line if theirs else None,
            own_file=mine.file if mine else None,
            own_line=mine.line if mine else None,
            text=f"{names.ranks([own.group.rank])} makes groups in another order: {names.process_group(own.group)} is "
            f"its group {own.group.name}{at}{of_others}{'' if is_clear else OR_OTHERS}",
        )

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

    def counts(self) -> Iterator[Step]:
        """What the ranks of each group of the calls have entered, those with the same count and last call together."""
        shown = DifferenceWords(self._ledgers)
        for key, group in self._groups.items():
            members = self._ledgers.members(key)
            alike = words.grouped((shown.last(one), rank) for rank, one in members.items())
            texts = [f"{names.ranks(ranks)} {last}" for last, ranks in alike.items()]
            if texts:
                backend = next(iter(members.values())).ledger.backend
                counted = f"Collectives of {names.process_group(group)} on {backend}"
                more = f"; and {len(texts) - SHOWN_COUNTS} more" if len(texts) > SHOWN_COUNTS else ""
                yield Step(text=f"{counted}: {'; '.join(texts[:SHOWN_COUNTS])}{more}")

    def is_overdue(self) -> bool:
        """Whether a collective of these groups takes longer than those before."""
        return any(map(self._ledgers.is_overdue, self._groups))

    def _is_late_elsewhere(self, difference: Difference) -> bool:
        """Whether members are late because one of them is in a call of another group."""
        late = set(self._late(difference).values()) if difference.kind in ("behind", "ahead") else set()
        others = (one for one in self._ranks.calls if one.group != difference.group)
        return late <= self._in_calls and not late.isdisjoint(
            {vertex.worker_id or "" for one in others for vertex in one.inside}
        )


class DifferenceWords:
    """Makes values of differences, with the words for them."""

    def __init__(self, ledgers: GroupLedgers) -> None:
        self._ledgers = ledgers

    def value(self, difference: Difference, group: ProcessGroup, *, has_others: bool) -> RankDifference:
        """A difference in a group, which has a name where there are others."""
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
            text="".join(self._in_words(difference, group, has_others=has_others)),
        )

    def _place(self, collective: Collective | None) -> Frame | None:
        return next(iter(self._ledgers.user_frames(collective)), None) if collective else None

    def _in_words(self, one: Difference, group: ProcessGroup, *, has_others: bool) -> Iterator[str]:
        """``rank 2 is 1 collective behind since number 5 (all_reduce at train.py:88)``."""
        of, number = names.process_group(group), f"number {one.number:,}"
        within = f" in {of}" if has_others else ""
        shift, are = words.plural(abs(one.shift), "collective"), words.word(len(one.ranks), "is", "are")
        yield f"{names.ranks(one.ranks)} "
        match one.kind:
            case "behind":
                yield f"{are} {shift} behind{within} since {number} ({self.call(one.theirs)})"
            case "ahead":
                yield f"{are} {shift} ahead{within} since {number} ({self.call(one.own)})"
            case "left out":
                yield f"left out {shift} of {of} from {number} on ({self.call(one.theirs)})"
            case "line":
                yield f"{are} at another line since {number} of {of}: {self.call(one.own)}, the "
                yield f"others {self.call(one.theirs)}"
            case "added":
                yield f"added {shift} to {of} from {number} on ({self.call(one.own)})"
            case _:
                own = self.call(one.own, one.kind)
                yield f"{words.word(len(one.ranks), 'calls', 'call')} {own} as {number} of {of}, the others "
                yield f"{self.call(one.theirs, one.kind)}{' with another root' if one.kind == 'root' else ''}"
        if not one.is_clear:
            yield OR_OTHERS

    def last(self, member: MemberLedger) -> str:
        """``entered 5, the last is barrier at train.py:88 at 03:12:05``."""
        ledger, at = member.ledger, member.ledger.entered_at
        record = member.record(ledger.recorded)
        call = f", the last is {self.call(record, 'sizes')}" if record else ""
        return f"entered {ledger.entered:,}{call}{f' at {words.time_of_day(at)}' if call and at else ''}"

    def call(self, collective: Collective | None, kind: DifferenceKind = "behind") -> str:
        """``all_reduce at train.py:88``, or ``all_reduce of 4 x 8 float32 at train.py:88`` where these differ."""
        if collective is None:
            return "not recorded"
        place = self._place(collective)
        at = f" at {words.base_name(place.file)}:{place.line}" if place else ""
        return f"{collective.operation}{_inputs(collective) if kind in ('sizes', 'types') else ''}{at}"


def _disagreements(made: Collection[_Made]) -> list[tuple[_Made, int]]:
    """With each group how many members have made it under other numbers alone, or another one under its number."""
    numbers = words.grouped(((one.what, one.group.rank), one.group.name) for one in made)
    variants = {what: Counter[frozenset[str]]() for what, _ in numbers}
    for (what, _), several in numbers.items():
        variants[what][frozenset(several)] += 1
    whats = {
        number: Counter(several)
        for number, several in words.grouped((one.group.name, one.what) for one in made).items()
    }
    found = []
    for one in made:
        own = frozenset(numbers[one.what, one.group.rank])
        others = sum(count for variant, count in variants[one.what].items() if own.isdisjoint(variant))
        under_number = whats[one.group.name]
        found.append((one, others + under_number.total() - under_number[one.what]))
    return found


def group_remarks(reduced: ReducedGraph, job: str | None) -> Iterator[Step]:
    """What the ledgers of a job's groups show beside its findings, or those of all jobs."""
    yield from _open_collectives(reduced.index, reduced.ledgers, job)
    yield from _late_ranks(reduced.index, reduced.ledgers, job)


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
