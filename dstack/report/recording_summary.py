"""What a recording has and what it lacks, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dstack.recording import Recording
from dstack.words import plural

NOTABLE = 0.02
"""A share of samples that is worth a sentence."""


def summary(recording: Recording) -> str:
    """``2,400 samples of 12 processes on 2 nodes in 10.0 s, at 20 Hz``."""
    samples = sum(count.samples for count in recording.counts)
    nodes = len({thread.node_id for thread in recording.threads})
    where = f" on {plural(nodes, 'node')}" if nodes else ""
    processes = plural(recording.coverage.processes, "process", "processes")
    how = f"in {recording.duration_s:.1f} s, at {recording.rate_hz:g} Hz"
    return f"{plural(samples, 'sample')} of {processes}{where} {how}"


def shortfalls(recording: Recording) -> Iterator[str]:
    """What was not recorded: missed, torn and dropped samples, and failures, equal ones together."""
    coverage = recording.coverage
    missed = coverage.wanted - coverage.taken
    if 0 < coverage.lowest_rate_hz < recording.rate_hz:
        rate = f"{coverage.lowest_rate_hz:.3g} Hz"
        yield f"A node recorded at {rate} for a time, to use little CPU: a sample then counts for several."
    if missed > NOTABLE * coverage.wanted:
        yield f"{missed:,} of {coverage.wanted:,} samples were missed: this host, or a node, was too busy."
    if coverage.torn:
        yield f"{plural(coverage.torn, 'sample')} left out: the stack changed while it was read."
    if coverage.left_out:
        yield f"{plural(coverage.left_out, 'sample')} left out: too many different stacks."
    reasons = Counter((failure.reason, failure.remedy) for failure in recording.failures)
    for (reason, remedy), count in reasons.most_common(5):
        where = plural(count, "process or node", "processes or nodes")
        yield f"{where} not recorded, or not completely: {reason}." + (f" {remedy}" if remedy else "")
    if len(reasons) > 5:
        yield f"{len(reasons) - 5} further reasons are left out."
