"""The command ``report``: what a snapshot shows, as one HTML page to share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dstack.cli.inputs import (
    address_option,
    force_option,
    job_option,
    no_logs_option,
    take_snapshot,
    terms_of,
    timeout_option,
)
from dstack.cli.output import show_progress
from dstack.errors import UsageError
from dstack.files.file_output import STDOUT, require_new, write_file
from dstack.processes.signals import CleanUp
from dstack.words import plural, visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dstack.cli.saved_files import SavedFiles
    from dstack.collecting.collector import Terms
    from dstack.errors import DstackError
    from dstack.model.snapshot import Snapshot

SUFFIXES = (".html", ".htm")
MAX_EARLIER = 100
"""The most earlier snapshots that are read."""


@click.command()
@click.argument("files", nargs=-1, type=click.Path(), metavar="[FILE|DIR]...")
@address_option
@click.option(
    "-o", "--output", required=True, metavar="FILE.html", help="Write the page to this file; - is standard output."
)
@force_option
@job_option
@no_logs_option
@timeout_option
def report(
    files: tuple[str, ...],
    address: str | None,
    output: str,
    force: bool,
    job: str | None,
    no_logs: bool,
    timeout_s: float,
) -> None:
    """Write one HTML page to share, with all views.

    Of a running cluster, or of saved snapshots, recordings and profiles. The page is one file that works in any
    browser without a network. Of several snapshots of one cluster, as in a DIR of dstack watch, the newest is shown
    whole, and the earlier ones as its past. Recordings and profiles are shown as flame graphs, of a DIR only the
    latest profile.
    """
    if files and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    require_new(output, force=force)
    if output != STDOUT and not output.lower().endswith(SUFFIXES):
        raise UsageError(f"{output} does not end in .html.", "Use this suffix, or - for standard output.")
    with CleanUp():
        data = (
            _page_of_files(files, job)
            if files
            else _page_of_cluster(address, terms_of(timeout_s, no_logs=no_logs), job)
        )
        write_file(output, data, force=force)
    if output != STDOUT:
        megabytes = f"{len(data) / 1e6:.1f} MB"
        click.echo(f"Saved {visible(output)} ({megabytes}). Open it in a browser.", err=True)


def _page_of_cluster(address: str | None, terms: Terms, job: str | None) -> bytes:
    from dstack.cli.saved_files import SavedFiles
    from dstack.collecting.collector import WHOLE_HISTORY
    from dstack.report.summaries import in_words

    snapshot = take_snapshot(address, terms._replace(history=WHOLE_HISTORY))
    if lack := snapshot.lack_of_events:
        click.echo(f"Note: {in_words(lack)}", err=True)
    elif snapshot.history is None:
        click.echo("Note: the history of tasks is missing, so the page has no timeline.", err=True)
    return _page(snapshot, SavedFiles(), job)


def _page_of_files(files: tuple[str, ...], job: str | None) -> bytes:
    """The page of the newest snapshot, or of the latest profile. Raises :class:`UsageError` if there is neither."""
    from dstack.cli.saved_files import open_files

    found = open_files(files, only_latest_profile=True)
    if not found.snapshots:
        return _page_of_profile(found)
    return _page(found.snapshots.pop().load(), found, job)


def _page_of_profile(found: SavedFiles) -> bytes:
    from dstack.model.profile import Profile
    from dstack.report.page.pages import sampled_page

    profiles = [one for _, one in found.recordings if isinstance(one, Profile)]
    if not profiles:
        raise UsageError("A report needs a snapshot.", "Make a page of a recording with: dstack record -o FILE.html")
    _note_left_out(found)
    return sampled_page(profiles[-1])


def _page(newest: Snapshot, others: SavedFiles, job: str | None) -> bytes:
    from dstack.processes.gc_pause import GcPause

    with show_progress("drawing the page"), GcPause():
        from dstack.analysis.naming.names import find_job
        from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
        from dstack.analysis.views.snapshot_changes import EarlierSnapshots
        from dstack.report.page.pages import report_page

        job_id = find_job(newest, job) if job is not None else None
        before = EarlierSnapshots(others.snapshots[-MAX_EARLIER:], job_id)
        page = report_page(AnalysedSnapshot.of(newest, job=job_id), before, others.recordings)
    _note_left_out(others, before.skipped)
    if (left_out := len(others.snapshots) - MAX_EARLIER) > 0:
        click.echo(f"Note: left out: {plural(left_out, 'older snapshot')}.", err=True)
    return page


def _note_left_out(found: SavedFiles, further: Iterable[DstackError] = ()) -> None:
    for error in (*found.skipped, *further):
        click.echo(f"Note: left out: {error.message}", err=True)
    if found.older_profiles:
        click.echo(f"Note: left out: {plural(found.older_profiles, 'older profile')}.", err=True)
