"""Which job a user means."""

from __future__ import annotations

from dstack.analysis.naming.names import script
from dstack.errors import UsageError
from dstack.model import Job, Snapshot

SHOWN_JOBS = 20


def find_job(snapshot: Snapshot, wanted: str) -> str:
    """The id of the one job that has this id or submission id, whose id begins so, or whose driver is this script.

    Of several jobs, those that still run are meant. Raises :class:`UsageError`, which names the jobs there are.
    """
    for is_it in (_has_id, _begins_so, _is_script):
        found = [job for job in snapshot.jobs if wanted and is_it(job, wanted)]
        found = [job for job in found if not job.is_dead] or found
        if len(found) == 1:
            return found[0].job_id
        if found:
            raise UsageError(f"{len(found)} jobs are called {wanted}.", _known(found))
    raise UsageError(f"No job is called {wanted}.", _known([job for job in snapshot.jobs if not job.is_dead]))


def _has_id(job: Job, wanted: str) -> bool:
    return wanted.lower() in (job.job_id, (job.submission_id or "").lower())


def _begins_so(job: Job, wanted: str) -> bool:
    return job.job_id.startswith(wanted.lower())


def _is_script(job: Job, wanted: str) -> bool:
    return wanted in (job.entrypoint, script(job.entrypoint))


def _known(jobs: list[Job]) -> str:
    """The sentence ``Known jobs: 01000000 (train.py), 02000000 (serve.py)``."""
    shown = [f"{job.job_id} ({script(job.entrypoint)})" if job.entrypoint else job.job_id for job in jobs[:SHOWN_JOBS]]
    rest = f" and {len(jobs) - SHOWN_JOBS} more" if len(jobs) > SHOWN_JOBS else ""
    return f"Known jobs: {', '.join(shown)}{rest}." if shown else "No job runs."
