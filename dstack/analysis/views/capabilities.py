"""What dstack can read of a cluster, and what limits it, for ``dstack doctor``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dstack.analysis.evidence.coverage import access_of, count_access
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import Check
from dstack.model.snapshot import Node
from dstack.observed.node import Failure
from dstack.observed.processes import Access
from dstack.words import grouped, plural


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
    """The nodes that answered, and the failures that belong to no node."""
    coverage = analysed.diagnosis.coverage
    answered, nodes = coverage.nodes.observed, coverage.nodes.total
    text = f"Ray {analysed.snapshot.ray_version} on {answered} of {plural(nodes, 'node')} that answered"
    return [
        Check("ok" if answered == nodes else "failure", text),
        *_limits([one for one in coverage.failures if one.node_id is None]),
    ]


def conclusion(analysed: AnalysedSnapshot, checks: Sequence[Check]) -> str:
    """What all checks say together, in one sentence."""
    access = analysed.diagnosis.coverage.access
    count = sum(access.values())
    read = count - access.get("state only", 0)
    limits = sum(check.level != "ok" for check in checks)
    if not limits:
        return f"dstack can read everything on this cluster: {plural(count, 'process', 'processes')}."
    marked = plural(limits, "limit")
    return f"dstack works with {marked}, marked above: it has read {read:,} of {plural(count, 'process', 'processes')}."


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
