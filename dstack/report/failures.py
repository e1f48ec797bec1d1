"""What could not be read, as sentences: where, why, after how long, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from dstack.model import Snapshot
from dstack.observed_node import Failure


def failures_in_words(snapshot: Snapshot, failures: Sequence[Failure]) -> list[str]:
    """All of them; failures alike of several processes of a node, or in both samples, as one."""
    alike: dict[tuple[object, ...], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((failure.stage, failure.node_id, failure.reason, failure.remedy), []).append(failure)
    return [
        failure_in_words(snapshot, same[0], processes=len({failure.pid for failure in same if failure.pid}))
        for same in alike.values()
    ]


def failure_in_words(snapshot: Snapshot, failure: Failure, *, processes: int = 1) -> str:
    """What failed, where, why, after how long, and what to do about it; for one or several processes alike."""
    node = next((node for node in snapshot.nodes if node.node_id == failure.node_id), None)
    pid = f"{processes} processes, among them pid {failure.pid}" if processes > 1 else f"pid {failure.pid}"
    where = ", ".join(part for part in (pid if failure.pid else "", f"node {node.ip}" if node else "") if part)
    after = f" (after {failure.elapsed_s:.1f} s)" if failure.elapsed_s >= 0.1 else ""
    remedy = f" {failure.remedy}" if failure.remedy else ""
    return f"{failure.stage}{f', {where}' if where else ''}: {failure.reason}{after}.{remedy}"
