"""What dstack can read of a cluster, and what limits it, for ``dstack doctor``."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from dstack.analysis.evidence.coverage import access_of
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.checks import Check
from dstack.model import ACCESSES, Failure, Node, Snapshot
from dstack.words import plural


def node_checks(analysed: AnalysedSnapshot) -> Iterator[tuple[Node, list[Check]]]:
    """What was read of each live node, the head first."""
    snapshot, failures = analysed.snapshot, analysed.diagnosis.coverage.failures
    of_node: defaultdict[str | None, list[Failure]] = defaultdict(list)
    for failure in failures:
        of_node[failure.node_id].append(failure)
    for node in sorted(snapshot.nodes, key=lambda node: not node.is_head):
        if node.alive:
            yield node, [*_reading_of(snapshot, node), *_limits(of_node[node.node_id])]


def cluster_checks(analysed: AnalysedSnapshot) -> list[Check]:
    """The nodes that answered, and the failures that belong to no node."""
    coverage = analysed.diagnosis.coverage
    answered, nodes = coverage.nodes.observed, coverage.nodes.total
    text = f"Ray {analysed.snapshot.ray_version} on {answered} of {plural(nodes, 'node')} that answered"
    return [
        Check("ok" if answered == nodes else "failure", text),
        *_limits([one for one in coverage.failures if one.node_id is None]),
    ]


def _reading_of(snapshot: Snapshot, node: Node) -> Iterator[Check]:
    of_worker = access_of(snapshot)
    workers = [worker.worker_id for worker in snapshot.workers if worker.node_id == node.node_id]
    read = Counter(of_worker[worker] for worker in workers if of_worker[worker] != "state only")
    if not workers:
        yield Check("ok", "no worker or driver runs here")
        return
    how = ", ".join(f"{read[access]} by {access}" for access in ACCESSES if access in read)
    text = f"{read.total()} of {plural(len(workers), 'process', 'processes')} read"
    is_whole = read.keys() == {"memory"} and read.total() == len(workers)
    yield Check("ok" if is_whole else "limit", f"{text}: {how}" if how else text)


def _limits(failures: Sequence[Failure]) -> Iterator[Check]:
    """Failures alike of several processes as one."""
    alike: defaultdict[tuple[str, str | None], set[int | None]] = defaultdict(set)
    for failure in failures:
        alike[failure.reason, failure.remedy].add(failure.pid)
    for (reason, remedy), pids in alike.items():
        where = f" ({plural(len(pids), 'process', 'processes')})" if pids != {None} else ""
        yield Check("failure", f"{reason}{where}", remedy)
