"""What was not observed, in sentences: first what could change the verdict, then all other failures.

A check that is inconclusive always has its reasons here: the text, the JSON, the pages, the TUI and pytest show them.
``dstack doctor`` says by the same facts what dstack can read of a cluster, and what limits it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dstack import words
from dstack.analysis.evidence.coverage import access_of, count_access
from dstack.analysis.index import subjects
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import PHASES, describe
from dstack.analysis.naming.sentences import sentence
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import (
    Check,
    Gap,
    HidingFailure,
    NoSample,
    UnknownDependency,
    UnreadMemory,
    UnreadWorker,
    Vertex,
)
from dstack.model.snapshot import Node
from dstack.model.vertex_keys import Key, Unknown, UnknownKey
from dstack.observed.node import Failure
from dstack.observed.processes import Access
from dstack.report.check_schema import GapKind
from dstack.report.summaries import alike_failures, alike_in_words, failures_in_words
from dstack.words import grouped, plural

KINDS: Mapping[type[Gap], GapKind] = {
    NoSample: "sample",
    UnreadWorker: "worker",
    UnreadMemory: "access",
    HidingFailure: "failure",
    UnknownDependency: "dependency",
}
CAUSES: tuple[GapKind, ...] = ("failure", "worker")
ACCESS_WORDS: Mapping[Access, str] = {
    "memory": "read from memory, with what their threads wait for",
    "py-spy": "read by py-spy: stacks, but not what they wait for",
    "setuid py-spy": "read by a setuid py-spy: stacks, but not what they wait for",
    "py-spy via sudo": "read by py-spy through sudo: stacks, but not what they wait for",
    "text stack": "read by Ray's agents: stacks as text, but not what they wait for",
    "jstack": "read by jstack: stacks of Java, but not what they wait for",
    "gdb": "read by gdb: stacks of C++, but not what they wait for",
    "kernel": "by the kernel, without stacks",
    "state only": "without stacks",
}
AGAIN = "Run dstack again"
IN_MOTION: dict[Unknown, str] = {
    "argument": "it was on its way to its owner",
    "executor": "the call was on its way, or had just ended",
    "slot": "calls were on their way to the actor",
    "step": "its coroutine began, ended or ran during each reading",
    "value": "the value was being made, or its owner had just ended",
    "worker": "its process was starting",
}
"""What was in motion while it was read; another reading may observe it."""


@dataclass(frozen=True, slots=True)
class Unobserved:
    """One reason in words: of ``count`` similar gaps of this ``kind``, or of so many ``failures`` that explain some."""

    kind: GapKind
    text: str
    count: int = 1
    failures: tuple[Failure, ...] = ()


def gaps_in_words(analysed: AnalysedSnapshot) -> list[Unobserved]:
    """What could change the verdict, similar gaps together.

    Failures come first, then workers that were not read: they are why dependencies are unknown.
    """
    words_of, gaps = _GapWords(analysed), analysed.diagnosis.gaps
    alike = grouped((words_of.likeness(gap), gap) for gap in gaps if not _failures_of(gap))
    found = [words_of.of(same) for same in alike.values()]
    kinds = {failure: KINDS[type(gap)] for gap in reversed(gaps) for failure in reversed(_failures_of(gap))}
    for same in alike_failures(reversed(kinds)):
        text = alike_in_words(analysed.snapshot, same)
        found.append(Unobserved(kinds[same[0]], text, len(same), tuple(same)))
    return sorted(found, key=lambda reason: CAUSES.index(reason.kind) if reason.kind in CAUSES else len(CAUSES))


def other_failures(analysed: AnalysedSnapshot, gaps: list[Unobserved]) -> list[str]:
    """The failures that these gaps do not name: they cannot change the verdict."""
    named = {failure for gap in gaps for failure in gap.failures}
    rest = [failure for failure in analysed.diagnosis.coverage.failures if failure not in named]
    return failures_in_words(analysed.snapshot, rest)


class _GapWords:
    """Makes the sentences about the gaps of one diagnosis."""

    def __init__(self, analysed: AnalysedSnapshot) -> None:
        self._analysed = analysed
        self._vertices: Mapping[Key, Vertex] = analysed.diagnosis.vertices

    @property
    def _index(self) -> SampleIndex:
        """Of both samples; made only if there is a gap."""
        return self._analysed.merged_index

    def likeness(self, gap: Gap) -> Hashable:
        """Equal for gaps that one sentence can be about."""
        match gap:
            case UnreadWorker():
                return "worker", self._missing(gap), self._node_of(gap.worker_id)
            case UnreadMemory():
                return "access", gap.access, self._node_of(gap.worker_id)
            case UnknownDependency():
                waiter = self._vertices[gap.waiter]
                return "dependency", _what(gap.target), waiter.wait.kind_name if waiter.wait else ""
            case _:
                return "sample"

    def of(self, gaps: list[Gap]) -> Unobserved:
        """The sentence about the first of these gaps, and how many are alike."""
        text, remedy = self._sentence(self._clearest(gaps))
        return Unobserved(KINDS[type(gaps[0])], f"{text.rstrip('.')}{words.alike(len(gaps))}. {remedy}.", len(gaps))

    def _clearest(self, gaps: list[Gap]) -> Gap:
        """The first gap whose waiter a reader knows, not a vertex that represents others."""
        known = (gap for gap in gaps if isinstance(gap, UnknownDependency) and self._vertices[gap.waiter].is_counted)
        return next(known, gaps[0])

    def _sentence(self, gap: Gap) -> tuple[str, str]:
        """What was not observed and why, and what to do."""
        match gap:
            case UnreadWorker():
                missing = self._missing(gap)
                return f"{self._process(gap.worker_id)} {missing}", f"{AGAIN}, with a longer --timeout if it is busy"
            case UnreadMemory():
                how = ACCESS_WORDS[gap.access]
                return f"{self._process(gap.worker_id)} was {how}", "dstack doctor says what its node allows"
            case UnknownDependency():
                return self._dependency(gap)
            case _:
                return "nothing was read: the snapshot has no sample", f"{AGAIN}, with a longer --timeout"

    def _missing(self, gap: UnreadWorker) -> str:
        """What of a worker was not read, as a predicate."""
        process = self._index.process(gap.worker_id)
        if process is not None and process.starting is not None:
            return f"is starting{PHASES[process.starting]}, and was not read completely"
        if not gap.is_partly_read:
            return "was not read"
        if process is not None and process.threads:
            return "did not answer which tasks it runs"
        return "has no stacks that could be read"

    def _dependency(self, gap: UnknownDependency) -> tuple[str, str]:
        waiter, target = self._vertices[gap.waiter], self._vertices[gap.target]
        text = sentence(self._index, self._vertices, waiter).text if waiter.is_counted else f"the {describe(target)}"
        if (what := _what(gap.target)) in IN_MOTION:
            return text, f"{AGAIN}: {IN_MOTION[what]}"
        return text, f"{AGAIN}; if it stays so, dstack stacks shows what its process does"

    def _process(self, worker_id: str) -> str:
        """``actor Left "l" (pid 7, node 10.0.0.1)``."""
        worker = self._index.workers[worker_id]
        node = self._index.nodes.get(worker.node_id)
        own = subjects.process(self._index, worker_id, with_pid=True)
        return names.process(replace(own, node=node.ip if node else None))

    def _node_of(self, worker_id: str) -> str:
        return self._index.workers[worker_id].node_id


def _failures_of(gap: Gap) -> tuple[Failure, ...]:
    """The failures that say why there is a gap."""
    match gap:
        case UnreadWorker() | UnreadMemory():
            return gap.failures
        case HidingFailure():
            return (gap.failure,)
        case _:
            return ()


def _what(key: Key) -> Unknown | None:
    return key.what if isinstance(key, UnknownKey) else None


def node_checks(analysed: AnalysedSnapshot) -> Iterator[tuple[Node, list[Check]]]:
    """What was read of each live node, the head first."""
    snapshot = analysed.snapshot
    failures = grouped((failure.node_id, failure) for failure in analysed.diagnosis.coverage.failures)
    access, of_node = access_of(snapshot), defaultdict[str, list[Access]](list)
    for worker in snapshot.workers:
        of_node[worker.node_id].append(access[worker.worker_id])
    for node in sorted(snapshot.nodes, key=lambda node: not node.is_head):
        if node.alive:
            yield node, [_reading_of(of_node[node.node_id]), *_limits(failures.get(node.node_id, ()))]


def cluster_checks(analysed: AnalysedSnapshot) -> list[Check]:
    """The nodes that answered, and the failures that belong to no node; the checks of this machine name lost pieces."""
    coverage = analysed.diagnosis.coverage
    answered, nodes = coverage.nodes.observed, coverage.nodes.total
    text = f"Ray {analysed.snapshot.ray_version} on {answered} of {plural(nodes, 'node')} that answered"
    return [
        Check("ok" if answered == nodes else "failure", text),
        *_limits([one for one in coverage.failures if one.node_id is None and one.stage != "Ray"]),
    ]


def conclusion(analysed: AnalysedSnapshot, checks: Sequence[Check]) -> str:
    """What all checks say together, in one sentence."""
    access = analysed.diagnosis.coverage.access
    count = sum(access.values())
    read = count - access.get("state only", 0)
    limits = [check for check in checks if check.level != "ok"]
    processes = plural(count, "process", "processes")
    if read < count:
        remedy = next((check.remedy for check in reversed(limits) if check.remedy), "see the limits above.")
        return f"dstack cannot read {count - read:,} of {processes}: {remedy}"
    if not count:
        return "dstack can read this cluster, on which no worker or driver runs."
    nodes = plural(sum(node.alive for node in analysed.snapshot.nodes), "node")
    marked = f", with {plural(len(limits), 'limit')}, marked above" if limits else ""
    return f"dstack can read all {processes} on {nodes}{marked}."


def _reading_of(workers: Sequence[Access]) -> Check:
    """How the workers of a node were read."""
    if not workers:
        return Check("ok", "no worker or driver runs here")
    read = count_access(one for one in workers if one != "state only")
    how = ", ".join(f"{number} by {access}" for access, number in read.items())
    text = f"{sum(read.values())} of {plural(len(workers), 'process', 'processes')} read"
    is_whole = read == {"memory": len(workers)}
    return Check("ok" if is_whole else "limit", f"{text}: {how}" if how else text)


def _limits(failures: Sequence[Failure]) -> Iterator[Check]:
    """Failures alike of several processes as one."""
    alike: defaultdict[tuple[str, str | None], set[int | None]] = defaultdict(set)
    for failure in failures:
        alike[failure.reason, failure.remedy].add(failure.pid)
    for (reason, remedy), pids in alike.items():
        where = f" ({plural(len(pids), 'process', 'processes')})" if pids != {None} else ""
        yield Check("failure", f"{reason}{where}", remedy)
