"""What torch's dumps of flight recorders say of a job, also after its processes have ended.

A file does not name its job. It counts as one of a job that ran when the file was written; the name of the thread that
made the last call says whether a worker of Ray wrote it. Files of one hang are written within seconds of each other:
the first process whose watchdog gives up tells the others (torch 2.13 to 2.15, by its sources).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack import words
from dstack.analysis.findings.group_differences import DifferenceWords
from dstack.analysis.graph.group_ledgers import Difference, GroupLedgers, MemberLedger
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.index.subjects import workers_of_jobs
from dstack.analysis.naming import names
from dstack.model.diagnosis import DumpedRanks, Step
from dstack.model.snapshot import Job
from dstack.observed.calls import TORCH
from dstack.observed.ledgers import MAX_DUMPED_RANKS, RecorderDump

TOGETHER_S = 60.0
"""Files are of one hang that were written at most so long before the last one."""
KEPT_S = 86_400.0
"""How old a dump of a running job may be; that of one that has ended is read for an hour."""
END_S = 60.0
"""How long after its job has ended a file may be written."""
OF_RAY = "ray::"


@dataclass(frozen=True)
class _Dump:
    """A dump, when it was written by dstack's clock, and the jobs that it may be of."""

    dump: RecorderDump
    at: float
    jobs: tuple[str, ...]


def dumped_ranks(index: SampleIndex, job_id: str | None = None) -> DumpedRanks | None:
    """The last dumps of a job that runs, or of one that ended a short time ago; None without any."""
    known = {(one.path, one.rank, one.written_at): one for one in index.snapshot.recorder_dumps}  # of a shared folder
    found = list(_of_jobs(index, known.values(), job_id))
    last_at = max((one.at for one in found), default=0.0)
    together = [one for one in found if one.at >= last_at - TOGETHER_S]
    return _Together(index, together).value() if together else None


def _of_jobs(index: SampleIndex, dumps: Iterable[RecorderDump], job_id: str | None) -> Iterator[_Dump]:
    ahead_s = {one.node_id: one.clock_ahead_s or 0.0 for one in index.snapshot.nodes}
    head_s = next((one.clock_ahead_s or 0.0 for one in index.snapshot.nodes if one.is_head), 0.0)
    for dump in dumps:
        ahead = ahead_s.get(dump.node_id, 0.0)
        jobs = [one for one in index.snapshot.jobs if _may_be_of(dump, one, ahead - head_s)]
        jobs = [one for one in jobs if _has_class(index, one, dump.thread)] or jobs
        at, ids = dump.written_at - ahead, tuple(one.job_id for one in jobs)
        is_recent = index.snapshot.taken_at - at < KEPT_S
        if ids and job_id in (None, *ids) and is_recent and not _is_superseded(index, at, ids):
            yield _Dump(dump, at, ids)


def _may_be_of(dump: RecorderDump, job: Job, ahead_s: float) -> bool:
    """Whether a job ran when a file was written, and when its last call was made."""
    if job.started_at is None:
        return False
    called_at = min((one.entered_at or dump.written_at for one in dump.ledgers), default=dump.written_at)
    ended_at = job.ended_at + END_S if job.ended_at else float("inf")
    return job.started_at <= called_at - ahead_s and dump.written_at - ahead_s <= ended_at


def _has_class(index: SampleIndex, job: Job, thread: str) -> bool:
    """Whether the name of a thread, of which the kernel keeps 15 bytes, begins as those of actors of a job do."""
    name = thread.removeprefix(OF_RAY)
    classes = {f"{one.class_name}." for one in index.snapshot.actors if one.job_id == job.job_id}
    return thread.startswith(OF_RAY) and any(one.startswith(name) or name.startswith(one) for one in classes)


def _is_superseded(index: SampleIndex, at: float, jobs: Sequence[str]) -> bool:
    """Whether a process that is in a group of torch has started since: the job was restarted, and its ranks go on."""
    return any(
        process.started_at > at and any(one.library == TORCH for one in process.process_groups)
        for worker in workers_of_jobs(index, jobs)
        if worker.worker_id in index.processes
        for process in index.processes[worker.worker_id].family
    )


class _Together:
    """Dumps that were written together."""

    def __init__(self, index: SampleIndex, dumps: Sequence[_Dump]) -> None:
        self._dumps = dumps
        self._ago_s = max(0.0, index.snapshot.taken_at - max(one.at for one in dumps))
        self._readable = [one.dump for one in dumps if not one.dump.problem]
        self._ledgers = GroupLedgers(index, _members(self._readable))
        self._groups = dict(self._ledgers.groups())
        self._words = DifferenceWords(self._ledgers)

    def value(self) -> DumpedRanks:
        """What they say."""
        found = self._difference()
        ranks = sorted({one.rank for one in self._readable})
        size = min(max((one.world_size or 0 for one in self._readable), default=0), MAX_DUMPED_RANKS)
        value = DumpedRanks(
            written_at=max(one.at for one in self._dumps),
            ago_s=round(self._ago_s, 3),
            ranks=tuple(ranks),
            missing=tuple(sorted(set(range(size)).difference(ranks))),
            jobs=tuple(dict.fromkeys(job for one in self._dumps for job in one.jobs)),
            is_of_ray=all(one.thread.startswith(OF_RAY) for one in self._readable),
            difference=self._words.value(found, self._groups[found.group], has_others=len(self._groups) > 1)
            if found
            else None,
            unreadable=tuple(one.dump.path for one in self._dumps if one.dump.problem),
        )
        return replace(value, text="".join(self._text(value)))

    def _difference(self) -> Difference | None:
        """The difference that explains the others: of ranks that are not in a call of another group."""
        found = [one for group in self._groups if (one := self._ledgers.difference(group))]
        return min(found, key=lambda one: (self._is_late_elsewhere(one), not one.is_clear), default=None)

    def _is_late_elsewhere(self, one: Difference) -> bool:
        others = [self._ledgers.members(group) for group in self._groups if group != one.group]
        inside = {rank for members in others for rank, member in members.items() if member.ledger.open}
        return one.kind == "behind" and inside.issuperset(one.ranks)

    def _text(self, value: DumpedRanks) -> Iterator[str]:
        if value.ranks:
            at = words.moment(value.written_at, self._ago_s)
            size = len(value.ranks) + len(value.missing)
            yield f"torch dumped its flight recorder at {at}, {words.duration(self._ago_s)} ago, on "
            yield f"{names.ranks(value.ranks)}{f' of {size}' if value.missing else ''}: "
            yield value.difference.text if value.difference else self._last()
        if value.missing:
            yield f"; no dump of {names.ranks(value.missing)} was found"
        if not value.is_of_ray:
            yield "; whether a worker of Ray wrote it is not known"
        if value.unreadable:
            files = words.shortly([words.base_name(one) for one in value.unreadable])
            yield f"{'; ' if value.ranks else ''}no readable dump of torch's flight recorder: {files}"

    def _last(self) -> str:
        """The last call of one rank, or of several that do not differ, in the group with most members."""
        groups = (self._ledgers.members(group) for group in self._groups)
        members = max(groups, key=len, default={})
        ledgers = [one for one in members.values() if one.ledger.calls]
        if not ledgers:
            return "no collective is recorded"
        number = min(one.ledger.recorded for one in ledgers)
        call = self._words.call(ledgers[0].record(number))
        return f"{'the records do not differ, ' if len(ledgers) > 1 else ''}the last is number {number:,} ({call})"


def _members(dumps: Iterable[RecorderDump]) -> Iterator[MemberLedger]:
    for dump in dumps:
        for ledger in dump.ledgers:
            yield MemberLedger(dump.groups[ledger.group], "", ledger, dump.collectives)


def step(dumped: DumpedRanks) -> Step:
    """The sentence, with the line of the call that differs."""
    difference = dumped.difference
    return Step(
        text=dumped.text, file=difference.file if difference else None, line=difference.line if difference else None
    )
