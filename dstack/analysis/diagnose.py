"""From a snapshot to its diagnosis: build the graph of each sample, keep confirmed waits, reduce, and find."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dstack.analysis.evidence.coverage import coverage_of, gaps_of, is_too_little
from dstack.analysis.evidence.evidence import Evidence
from dstack.analysis.evidence.wait_durations import with_bounds
from dstack.analysis.findings import find_all, verdict_of
from dstack.analysis.findings.failures import Failures
from dstack.analysis.findings.group_differences import group_remarks
from dstack.analysis.findings.outside_waits import (
    explanation,
    idle_actors,
    outside_waits,
    resting,
    verdict_without_findings,
)
from dstack.analysis.findings.polled_state import polled_state
from dstack.analysis.findings.recorder_dumps import dumped_ranks
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.graph.confirmation import confirmed_graph
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.names import find_job
from dstack.model.diagnosis import NODES_SETTLE_S, Diagnosis, Verdict, Vertex
from dstack.model.snapshot import Snapshot


def diagnose(
    snapshot: Snapshot,
    *,
    job: str | None = None,
    first: SampleIndex | None = None,
    nodes_settle_s: float = NODES_SETTLE_S,
) -> Diagnosis:
    """Diagnose a snapshot. Pure: the same snapshot gives the same diagnosis.

    With a ``job``, which may be given as for :func:`find_job`, only the findings in which that job takes part. A caller
    that has an index of the ``first`` sample passes it on. What no node has is a hang once no node has joined or left
    for ``nodes_settle_s``.
    """
    job_id = find_job(snapshot, job) if job is not None else None
    nothing = Diagnosis(verdict="unknown", findings=(), vertices={}, coverage=coverage_of(snapshot), job=job_id)
    if not snapshot.samples:
        return replace(nothing, gaps=tuple(gaps_of(snapshot, {})))
    evidence = Evidence(snapshot, first, nodes_settle_s)
    vertices = with_bounds(evidence, confirmed_graph(evidence))
    reduced = ReducedGraph(evidence.first, vertices, evidence)
    found = tuple(find_all(reduced))
    findings = tuple(finding for finding in found if job_id is None or job_id in finding.jobs)
    rests = resting(reduced, job_id) if all(finding.kind == "failed" for finding in findings) else []
    diagnosis = replace(
        nothing,
        findings=findings,
        vertices=vertices,
        gaps=tuple(gaps_of(snapshot, vertices)),
        outside=outside_waits(reduced, found, rests, job_id),
        remarks=(*polled_state(reduced, resting(reduced, job_id)), *group_remarks(reduced, job_id)),
        progress=reduced.progress(reduced.jobs_in_question(job_id)),
        dumped=dumped_ranks(evidence.first, job_id),
    )
    if not findings:
        return _without_findings(diagnosis, reduced, rests)
    return replace(diagnosis, verdict=_unless_unknown(verdict_of(findings[0].kind), diagnosis))


def _unless_unknown(verdict: Verdict, diagnosis: Diagnosis) -> Verdict:
    """The verdict; that nothing is stuck needs more than too little."""
    return "unknown" if verdict in ("running", "idle") and is_too_little(diagnosis.coverage) else verdict


def _without_findings(diagnosis: Diagnosis, reduced: ReducedGraph, rests: Sequence[Vertex]) -> Diagnosis:
    """With the verdict, and with what is shown only where there is no finding."""
    verdict = verdict_without_findings(reduced, rests, diagnosis.job)
    return replace(
        diagnosis,
        verdict=_unless_unknown(verdict, diagnosis),
        explanation=tuple(explanation(reduced, rests)),
        idle=idle_actors(reduced, diagnosis.job),
        failed_before=Failures(reduced).beside_outside(diagnosis.job),
    )
