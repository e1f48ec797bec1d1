"""The commands that show the history of tasks."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import click

from dstack.cli.options import address_option, timeout_option
from dstack.errors import UsageError
from dstack.signals import CleanUp
from dstack.visible import visible

if TYPE_CHECKING:
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.analysis.views.timeline import Timeline

SUFFIXES = (".json", ".json.gz")


@click.command()
@click.argument("file", required=False, type=click.Path())
@address_option
@click.option("-o", "--output", metavar="FILE", help="Write the trace: .json, .json.gz, or - for standard output.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option("--job", metavar="ID", help="Include only one job: its id, submission id or script.")
@timeout_option
def timeline(
    file: str | None, address: str | None, output: str | None, force: bool, job: str | None, timeout_s: float
) -> None:
    """Show when each task waited and ran, of a running cluster or of a saved snapshot.

    With -o, write a trace for https://ui.perfetto.dev or chrome://tracing; else print a summary.
    """
    from dstack.cli.inputs import snapshot_with_history

    if output:
        _require_writable(output, force=force)
    snapshot = snapshot_with_history(file, address, timeout_s)
    from dstack.analysis.naming.job_selection import find_job
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.analysis.views.timeline import Timeline
    from dstack.gc_pause import GcPause

    with GcPause():
        analysed = AnalysedSnapshot.of(snapshot)
        if analysed.history is None:
            raise UsageError("The snapshot has no history of tasks.", "Take one with: dstack snapshot -o FILE")
        only = find_job(snapshot, job) if job else None
        shown = Timeline(analysed.history, analysed.diagnosis.vertices, job=only)
        if output:
            _write_trace(shown, output, force=force)
    _print_summary(shown, analysed, output)


def _require_writable(output: str, *, force: bool) -> None:
    from dstack.file_output import STDOUT, require_new

    if output != STDOUT and not output.endswith(SUFFIXES):
        raise UsageError(f"{output} does not end in .json or .json.gz.", "Use one of these suffixes, or - for stdout.")
    require_new(output, force=force)


def _write_trace(shown: Timeline, output: str, *, force: bool) -> None:
    from dstack.file_output import STDOUT, write_file
    from dstack.report.exporters.chrome_trace import chrome_trace

    with CleanUp():
        data = chrome_trace(shown)
        if output == STDOUT:
            data += b"\n"
        elif output.endswith(".gz"):
            data = gzip.compress(data, compresslevel=6, mtime=0)
        write_file(output, data, force=force)


def _print_summary(shown: Timeline, analysed: AnalysedSnapshot, output: str | None) -> None:
    """Prints the summary; next to a trace it is short, and on standard error."""
    from rich.console import Console

    from dstack.report.summaries import print_timeline_summary, summary_lines

    if not output:
        print_timeline_summary(Console(highlight=False), shown, analysed)
        return
    for line in summary_lines(shown, analysed):
        click.echo(visible(line), err=True)
    if output != "-":
        click.echo(f"Saved {visible(output)}. Open it in https://ui.perfetto.dev or chrome://tracing", err=True)
