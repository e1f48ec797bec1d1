"""What processes printed last, where it may say why something waits: an error, a repeated warning, a silence.

A line of a log changes no verdict. It is evidence beside a wait, so few lines are chosen, and none where nothing is
stuck or slow: healthy programs print warnings and errors, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter

from msgspec.structs import replace

from dstack.analysis.findings.finding_facts import FindingFacts
from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.model.diagnosis import MOMENT_S, Advice, FindingKind, LastWords, Step
from dstack.model.vertex_facts import ProcessName
from dstack.model.vertex_keys import UnknownKey
from dstack.observed.node import WITHOUT_DIGITS, LogKind, LogLine, LogStream, LogTail
from dstack.words import base_name, duration, grouped, time_of_day, times

SHOWN_LINES = 3
LONGEST, SHORT = 160, 80
"""The most characters of a line, and of one in a headline."""
STAMP = re.compile(r"^\W{0,2}\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?(?: [A-Z] \d+ \d+(?=\]))?\W?\s*(?:-+\s*)?")
"""The time that a line begins with."""
REPEATED = 3
"""A warning that is printed so often says something."""
NOW_S, RECENT_S = 600.0, 3600.0
"""A line that may be of no matter counts if it is no older before the wait."""
QUIET_S, QUIETER = 5.0, 3.0
"""A process fell silent first if it did so long before the others, and so many times as long as these differ."""
FEWEST_ALIKE = 3

MEANINGS: Mapping[LogKind, str] = {
    "thread exception": "a thread of it has ended",
    "asyncio exception": "code of its event loop has ended, and nothing handled it",
    "exit exception": "raised where nothing can handle it",
    "fatal error": "the process crashes",
    "out of memory": "it could not get memory",
    "CUDA": "the GPU or its driver reports an error",
    "NCCL": "GPUs could not communicate",
    "UCX": "the transport between processes failed",
    "disk full": "a disk is full",
    "no descriptors": "it may open no more files or sockets",
    "name resolution": "a host's name has no address",
    "refused connection": "nothing accepts connections there",
    "lost connection": "its other side has gone",
    "no answer": "its other side does not answer",
    "rate limit": "a service accepts no more requests for now",
    "no access": "it is not allowed to",
    "worker start": "worker processes do not start",
    "object store": "the object store has no room",
}
"""What the lines of each kind mean; others speak for themselves."""
TELLING: frozenset[LogKind] = frozenset(
    (
        "thread exception",
        "asyncio exception",
        "exit exception",
        "fatal error",
        "out of memory",
        "CUDA",
        "NCCL",
        "UCX",
        "disk full",
        "no descriptors",
    )
)
"""Kinds of which one line is worth showing; others count if they repeat, or are the last that was printed."""
ENDED: tuple[LogKind, ...] = ("thread exception", "asyncio exception")
OF_NODE: Mapping[LogStream, str] = {"environment": "installation of a runtime environment", "GCS": "GCS"}
OF_START = ("scheduler", "executor", "holder", "setup")
"""Unknown targets that the raylet's log may explain."""


class Logs:
    """The logs of one sample, by process and node."""

    def __init__(self, index: SampleIndex) -> None:
        self._index = index
        self._taken_at = index.snapshot.taken_at
        tails = [tail for tail in index.snapshot.log_tails if tail.lines]
        self._of_worker = grouped((tail.worker_id, tail) for tail in tails if tail.worker_id)
        self._of_node = [tail for tail in tails if tail.node_id]
        self._ahead_s = {node.node_id: node.clock_ahead_s or 0.0 for node in index.snapshot.nodes}

    def beside(self, facts: FindingFacts) -> tuple[LastWords, ...]:
        """What the processes of a finding printed, the most telling first; nothing beside what only takes its time."""
        if not self._index.snapshot.log_tails or not _is_asked(facts):
            return ()
        since = facts.draft.since.began_at if facts.draft.since else None
        found = [
            words
            for place, worker_id in enumerate(self._workers(facts))
            for tail in self._of_worker.get(worker_id, ())
            for line in tail.lines
            if line.kind != "plain"
            and _says_something(words := self._words(tail, line, since, place), facts.draft.kind, self._taken_at)
        ]
        found += self._of_nodes(facts, since)
        found = list(_folded(_without_copies(found)))
        found.sort(key=lambda one: (one.kind not in TELLING, one.place, -(one.at or 0.0)))
        known = {one.worker_id for one in found}
        silences = (one for one in self._silences(facts, since) if one.worker_id not in known)
        return (*found, *silences)[:SHOWN_LINES]

    def _of_nodes(self, facts: FindingFacts, since: float | None) -> list[LastWords]:
        """What may keep workers from their start; the last warning of a raylet where Ray does not say why."""
        unknown = (end for end in facts.ends if isinstance(end.key, UnknownKey) and end.key.what in OF_START)
        awaited = {end.subject.what for end in unknown}
        lines = ((tail, line) for tail in self._of_node for line in tail.lines) if awaited else ()
        words = (self._words(tail, line, since) for tail, line in lines)
        found = [one for one in words if one.before_s is not None and one.before_s < MOMENT_S]
        last = [one for one in found if one.stream == "raylet" and one.is_last and "scheduler" in awaited]
        return [one for one in found if one.kind in (*MEANINGS, "exception")] or last[:1]

    def _workers(self, facts: FindingFacts) -> Iterator[str]:
        """The processes of a finding, the nearest to its cause first: failed ones, final blockers, members, callers."""
        failed = {one.pid for one in facts.failed_before if one.pid}
        actors = {one.actor_id for one in facts.failed_before if one.actor_id}
        known = self._of_worker.items() if failed or actors else ()
        ended = (
            worker_id
            for worker_id, tails in known
            if failed.intersection(tail.pid for tail in tails) or self._actor_id(worker_id) in actors
        )
        alive = (one.worker_id for one in chain(facts.ends, facts.members, facts.behind) if one.worker_id)
        return iter(dict.fromkeys(chain(ended, alive)))

    def _actor_id(self, worker_id: str) -> str | None:
        actor = self._index.actor_of_worker(worker_id)
        return actor.actor_id if actor else None

    def _words(self, tail: LogTail, line: LogLine, since: float | None, place: int = 0) -> LastWords:
        at = self.time_of(tail, line)
        return LastWords(
            name=self.writer(tail),
            text=line.text,
            kind=line.kind,
            writer=line.writer,
            stream=tail.stream,
            path=tail.path,
            worker_id=tail.worker_id,
            pid=tail.pid,
            at=at,
            before_s=round(since - at, 3) if since and at and self._index.snapshot.has_one_time else None,
            count=line.count,
            over_s=line.at - line.first_at if line.at and line.first_at else None,
            is_last=line.lines_after == 0,
            file=line.file,
            line=line.line,
            place=place,
        )

    def written_at(self, tail: LogTail) -> float:
        """When a log last changed, by dstack's clock."""
        return tail.written_at - self._ahead_of(tail)

    def time_of(self, tail: LogTail, line: LogLine) -> float | None:
        """When a line was printed, by dstack's clock: as it says, or the last one of a file when that was written."""
        at = line.at or (tail.written_at if line.lines_after == 0 else None)
        return None if at is None else at - self._ahead_of(tail)

    def _ahead_of(self, tail: LogTail) -> float:
        worker = self._index.workers.get(tail.worker_id or "")
        return self._ahead_s.get(tail.node_id or (worker.node_id if worker else ""), 0.0)

    def writer(self, tail: LogTail) -> str:
        """``actor Trainer "left" (pid 7)``, ``child process (pid 8) of driver x.py``, ``raylet of node 10.0.0.1``."""
        if tail.node_id is not None:
            node = self._index.nodes.get(tail.node_id)
            of_node = f" of {names.node(node)}" if node else ""
            ended = f"worker process {tail.pid} that has ended" if tail.pid else None
            return f"{ended or OF_NODE.get(tail.stream, tail.stream)}{of_node}"
        worker = self._index.workers.get(tail.worker_id or "")
        if worker is None:
            return names.process(ProcessName(sort="ended process", pid=tail.pid))
        is_child = tail.pid not in (None, worker.pid)
        process = names.process(subjects.process(self._index, worker.worker_id, with_pid=not is_child))
        rank = self._index.ranks(worker.worker_id, tail.pid if is_child else None).rank
        whole = f"{names.child_process(tail.pid or 0)} of {process}" if is_child else process
        return whole if rank is None else f"{names.ranks([rank])}'s {whole}"

    def _silences(self, facts: FindingFacts, since: float | None) -> Iterator[LastWords]:
        """Of the actors of each class, the one whose last line is much older than those of all others."""
        alike: dict[tuple[str, str], list[tuple[float, LogTail]]] = {}
        for worker_id in self._workers(facts):
            tails = (tail for tail in self._of_worker.get(worker_id, ()) if tail.stream in ("stdout", "stderr"))
            timed = [(at, tail) for tail in tails if (at := self.time_of(tail, tail.lines[-1])) is not None]
            if timed and (actor := self._index.actor_of_worker(worker_id)):
                alike.setdefault((actor.job_id, actor.class_name), []).append(max(timed, key=itemgetter(0)))
        for several in alike.values():
            (first_at, tail), *others = sorted(several, key=itemgetter(0))
            if len(several) >= FEWEST_ALIKE:
                second_at, last_at = others[0][0], others[-1][0]
                if second_at - first_at > max(QUIET_S, QUIETER * (last_at - second_at)):
                    words = self._words(tail, tail.lines[-1], since)
                    yield replace(words, silent_before_s=round(second_at - first_at, 3), others=len(others))


def _is_asked(facts: FindingFacts) -> bool:
    """Whether something is stuck or at rest, or takes long and does not compute, so that its logs may say why."""
    if facts.draft.kind not in OPEN_ENDED:
        return True
    return facts.is_slow and not any(map(facts.reduced.computes, facts.ends))


OPEN_ENDED: tuple[FindingKind, ...] = ("running", "polling", "starved", "failed")


def _says_something(words: LastWords, kind: FindingKind, now: float) -> bool:
    """Whether a line may say why something waits; beside a proven deadlock only one that tells by itself.

    Beside what may just go on, only a line counts that is printed again and again until now.
    """
    if kind in ("running", "starved", "failed"):
        return words.kind != "plain" and words.count >= REPEATED and (words.at or 0.0) > now - NOW_S
    if words.kind in TELLING:
        return True
    age_s = words.before_s if words.before_s is not None else now - (words.at or now)
    if age_s > RECENT_S:
        return False
    is_noted = words.kind not in ("plain", "warning") and (words.is_last or words.count >= REPEATED)
    return kind != "deadlock" and (is_noted or (words.kind == "warning" and words.count >= REPEATED))


def _without_copies(found: list[LastWords]) -> list[LastWords]:
    """Without the lines that a driver prints for workers, if any worker's own log has them."""
    own = {(one.kind, one.text) for one in found if not one.writer}
    return [one for one in found if not (one.writer and (one.kind, one.text) in own)]


def _folded(found: Iterable[LastWords]) -> Iterator[LastWords]:
    """The first of those in the same words, but for numbers, with the number of other processes that printed them."""
    for alike in grouped(((one.kind, one.text.translate(WITHOUT_DIGITS)), one) for one in found).values():
        yield replace(alike[0], others=len({one.pid for one in alike}) - 1)


def step(words: LastWords) -> Step:
    """``Printed by actor Loader (pid 7) at 03:12:40, 2 min before the wait: ValueError: x (a thread has ended)``."""
    return Step(text=_sentence(words), file=words.file, line=words.line)


def _sentence(words: LastWords) -> str:
    text = shown(words.text, LONGEST)
    if words.silent_before_s is not None:
        quiet = f"{duration(words.silent_before_s)} before the other {words.others} of its kind"
        return f"Silent first: {words.name}, whose last line was {quiet}{_when(words)}: {text}"
    lead = "Last line of" if words.is_last else "Printed by"
    writer = f" for {words.writer}" if words.writer else ""
    others = f" and {words.others} more" if words.others else ""
    meaning = MEANINGS.get(words.kind, "")
    over = f" in {duration(words.over_s)}" if words.over_s else ""
    repeats = f"{times(words.count)}{over}" if words.count > 1 else ""
    remark = "; ".join(part for part in (meaning, repeats) if part)
    return f"{lead} {words.name}{writer}{others}{_when(words)}: {text}{f' ({remark})' if remark else ''}"


def _when(words: LastWords) -> str:
    if words.at is None:
        return ""
    before = f", {duration(words.before_s)} before this wait began" if words.before_s and words.before_s >= 1 else ""
    return f" at {time_of_day(words.at)}{before}"


def headline(found: Iterable[LastWords], facts: FindingFacts) -> str:
    """What the first line that tells by itself adds to a sentence about waits that are stuck or at rest."""
    first = _in_headline(found, facts.draft.kind)
    if first is None:
        return ""
    at = f" at {time_of_day(first.at)}" if first.at else ""
    name = "its process" if _is_of_subject(first, facts) else first.name
    return f"; {name} printed “{shown(first.text, SHORT)}”{at}"


def _is_of_subject(words: LastWords, facts: FindingFacts) -> bool:
    """Whether the process is that of the only execution that the headline is about."""
    worker = facts.reduced.index.workers.get(words.worker_id or "")
    first = next(iter(facts.shared_calls), None)
    if worker is None or worker.pid != words.pid or words.writer or first is None or first.is_shared:
        return False
    return {vertex.worker_id for vertex in first.inside} == {worker.worker_id}


def steps(found: Sequence[LastWords], kind: FindingKind) -> Iterator[Step]:
    """A sentence for each line that the headline does not have already."""
    first = _in_headline(found, kind)
    is_whole = first is not None and len(without_time(first.text)) <= SHORT
    return (step(one) for one in found if not (is_whole and one is first))


def _in_headline(found: Iterable[LastWords], kind: FindingKind) -> LastWords | None:
    if kind in OPEN_ENDED:
        return None
    return next((one for one in found if one.kind in TELLING and one.silent_before_s is None), None)


def next_step(found: Iterable[LastWords], advice: Advice) -> Advice:
    """The exception that ended a thread or asyncio task, in place of a search for who ends a wait."""
    ended = next((one for one in found if one.kind in ENDED and one.file), None)
    if ended is None or ended.file is None or advice.kind != "next":
        return advice
    place = f"{base_name(ended.file)}:{ended.line}"
    return Advice(
        kind="next", text=f"Correct the exception at {place}: what ended there may have had to end this wait."
    )


def shown(text: str, most: int) -> str:
    """A line without its time, which stands beside it, cut to so many characters."""
    text = without_time(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def without_time(text: str) -> str:
    """A line without the time that it begins with."""
    return STAMP.sub("", text, count=1).strip()
