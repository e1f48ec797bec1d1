"""The words of what a library of Ray has decided: why one of its parts starts no more work, by its own numbers."""

from __future__ import annotations

from dstack import words
from dstack.analysis.naming import names
from dstack.observed.processes import LibraryState


def library_state_in_words(state: LibraryState) -> str:
    """``Ray Data holds back tasks of operator Map(f) by its policy ResourceBudget: 2 run, 9 blocks are queued``."""
    match state.library:
        case "Data":
            return _of_operator(state)
        case "Serve":
            return _of_deployment(state)
        case "Train":
            return _of_run(state)
        case "Tune":
            return _of_trials(state)


def _of_operator(state: LibraryState) -> str:
    counts, used = state.counts, state.counts.get("used bytes", 0)
    by = f" by its policy {state.state}" if state.state else ""
    parts = [
        f"{words.plural(counts.get('running tasks', 0), 'task runs', 'tasks run')}",
        f"{words.plural(counts.get('queued blocks', 0), 'block is', 'blocks are')} queued before it",
        f"{counts.get('output blocks', 0):,} after it, not consumed",
        f"it uses {words.size(used)} of the object store" if used else "",
    ]
    left = f"; its budget has {names.amounts(state.resources)} left" if state.resources else ""
    return (
        f"Ray Data holds back {state.holds_back} of operator {state.name}{by}: {', '.join(filter(None, parts))}{left}"
    )


def _of_deployment(state: LibraryState) -> str:
    counts = state.counts
    running = f", {counts['running replicas']:,} run" if "running replicas" in counts else ""
    failed = counts.get("failed starts", 0)
    starts = f", {words.plural(failed, 'start or health check', 'starts or health checks')} failed" if failed else ""
    message = f"; Serve says: {state.message}" if state.message else ""
    wanted = words.plural(counts.get("replicas", 0), "replica")
    name = f"Serve deployment {state.name} of app {state.app}"
    return f"{name} is {state.state}: it should have {wanted}{running}{starts}{message}"


def _of_run(state: LibraryState) -> str:
    counts = state.counts
    workers = counts.get("workers", 0)
    each = f" with {names.amounts(state.resources)} each" if state.resources else ""
    asked = f": it asks for {words.plural(workers, 'worker')}{each}" if workers else ""
    pending, queued = counts.get("validations", 0), counts.get("queued validations", 0)
    more = f", {queued:,} more come after that" if queued else ""
    validated = f"; {words.plural(pending, 'validation task has', 'validation tasks have')} not ended{more}"
    return f"Train's controller is {state.state}{asked}{validated if pending else ''}"


def _of_trials(state: LibraryState) -> str:
    running, pending = state.counts.get("running trials", 0), state.counts.get("pending trials", 0)
    most = state.counts.get("most trials", 0)
    limit = f"; it runs at most {most:,} at a time (max_concurrent_trials)" if most else ""
    return f"Tune runs {words.plural(running, 'trial')}, and {pending:,} more are pending{limit}"
