"""The fix for a deadlock of requests to Ray Serve."""

from __future__ import annotations

from dstack import words
from dstack.analysis.findings.facts.deadlocked_waits import DeadlockedWaits
from dstack.analysis.naming.descriptions import any_of, limit_in_words


def fix(waits: DeadlockedWaits) -> str | None:
    """Raise the limit that is reached, or do not wait for the response; None without queued requests."""
    queued = [vertex for vertex in waits.in_cycle("Serve slot") if vertex.is_counted]
    if not queued:
        return None
    labels = any_of(queued)
    if not all(vertex.wait and vertex.wait.limit for vertex in queued):
        return (
            f"Do not wait for {labels} in a constructor that the called deployment needs to start: make the call in "
            "the first request, or in a task that the constructor does not await."
        )
    limits = words.listed(
        sorted({limit_in_words(vertex.wait.limit) for vertex in queued if vertex.wait and vertex.wait.limit}), " or "
    )
    return (
        f"Raise {limits}, so that {labels} can start; or make that call without waiting for its response; or move the "
        "called method to a deployment that calls none of these."
    )
