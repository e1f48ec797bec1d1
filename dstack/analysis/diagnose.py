"""From a snapshot to its diagnosis: build the graph of each sample, keep confirmed waits, reduce, and find."""

from __future__ import annotations

from dstack.analysis.evidence.confirmation import confirmed_graph
from dstack.analysis.evidence.coverage import coverage_of, has_coverage_gaps
from dstack.analysis.evidence.polling_loops import find_polling_loops, with_polls_shown
from dstack.analysis.evidence.sample_changes import with_reach
from dstack.analysis.evidence.wait_durations import with_bounds
from dstack.analysis.findings import find_all, verdict_of
from dstack.analysis.findings.outside_waits import outside_waits
from dstack.analysis.findings.reduced_graph import ReducedGraph
from dstack.analysis.findings.wording.failures import Failures
from dstack.analysis.index.sample_index import SampleIndex
from dstack.analysis.naming.job_selection import find_job
from dstack.diagnosis import Diagnosis
from dstack.model import Snapshot


def diagnose(snapshot: Snapshot, *, job: str | None = None, first: SampleIndex | None = None) -> Diagnosis:
    """Diagnose a snapshot. Pure: the same snapshot gives the same diagnosis.

    With a ``job``, which may be given as for :func:`find_job`, only the findings in which that job takes part. A caller
    that has an index of the ``first`` sample passes it on.
    """
    job_id = find_job(snapshot, job) if job is not None else None
    if not snapshot.samples:
        coverage = coverage_of(snapshot)
        return Diagnosis(verdict="clear", incomplete=True, findings=(), vertices={}, coverage=coverage, job=job_id)
    polls = find_polling_loops(snapshot)
    shown = with_polls_shown(with_reach(snapshot), polls)
    if first is None or shown is not snapshot:
        first = SampleIndex(shown, shown.samples[0], polls=polls)
    vertices = with_bounds(shown, first, confirmed_graph(shown, first))
    reduced = ReducedGraph(first, vertices, _watched_s(snapshot))
    found = tuple(find_all(reduced))
    findings = tuple(finding for finding in found if job_id is None or job_id in finding.jobs)
    outside = outside_waits(reduced, found, job_id)
    verdict = verdict_of(findings[0]) if findings else "blocked" if outside else "clear"
    return Diagnosis(
        verdict=verdict,
        incomplete=verdict != "deadlock" and has_coverage_gaps(snapshot, vertices),
        findings=findings,
        vertices=vertices,
        coverage=coverage_of(snapshot),
        job=job_id,
        outside=outside,
        failed_before=() if findings else Failures(reduced).beside_outside(job_id),
    )


def _watched_s(snapshot: Snapshot) -> float | None:
    """How long all confirmed waits were observed at least."""
    if len(snapshot.samples) == 1:
        return None
    return round(max(0.0, snapshot.samples[1].began_s - snapshot.samples[0].ended_s), 3)
