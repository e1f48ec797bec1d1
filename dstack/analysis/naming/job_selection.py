"""Selection of a job by what a user enters."""

from __future__ import annotations

from collections.abc import Sequence

from dstack.analysis.naming.names import script
from dstack.errors import UsageError
from dstack.model.snapshot import Job, Snapshot

SHOWN_JOBS = 20


def find_job(snapshot: Snapshot, wanted: str) -> str:
    """The id of the only job with this id or submission id, this beginning of its id, or this driver script.

    If several jobs match, only running ones count. Raises :class:`UsageError`, which names the known jobs.
    """
    found = jobs_called(snapshot.jobs, wanted)
    if len(found) > 1:
        raise UsageError(f"{len(found)} jobs are called {wanted}.", _known(found))
    return found[0].job_id


def jobs_called(jobs: Sequence[Job], wanted: str) -> list[Job]:
    """The jobs that match, at least one: running ones, else all. Raises :class:`UsageError`."""
    for matches in (_has_id, _begins_with, _is_script):
        if found := [job for job in jobs if wanted and matches(job, wanted)]:
            return [job for job in found if not job.is_dead] or found
    raise UsageError(f"No job is called {wanted}.", _known([job for job in jobs if not job.is_dead]))


def _has_id(job: Job, wanted: str) -> bool:
    return wanted.lower() in (job.job_id, (job.submission_id or "").lower())


def _begins_with(job: Job, wanted: str) -> bool:
    return job.job_id.startswith(wanted.lower())


def _is_script(job: Job, wanted: str) -> bool:
    return wanted in (job.entrypoint, script(job.entrypoint))


def _known(jobs: list[Job]) -> str:
    shown = [f"{job.job_id} ({script(job.entrypoint)})" if job.entrypoint else job.job_id for job in jobs[:SHOWN_JOBS]]
    rest = f" and {len(jobs) - SHOWN_JOBS} more" if len(jobs) > SHOWN_JOBS else ""
    return f"Known jobs: {', '.join(shown)}{rest}." if shown else "No job runs."
