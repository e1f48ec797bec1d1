"""The commands on what has run: ``timeline``, ``graph`` as text, a picture, JSON or DOT, and ``predict``."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from dstack.cli.inputs import (
    address_option,
    force_option,
    job_option,
    load_snapshot,
    require_history,
    snapshot_with_history,
    take_snapshot,
    timeout_option,
)
from dstack.cli.output import console_text, explained, print_text, show_progress, stdout_encoding
from dstack.errors import UsageError
from dstack.files.file_output import STDOUT, require_new, write_file
from dstack.processes.signals import CleanUp
from dstack.words import encodable, listed, plural, visible

if TYPE_CHECKING:
    from rich.console import Console

    from dstack.analysis.history.call_nodes import By
    from dstack.analysis.history.simulation import Change
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.analysis.views.call_graph import CallGraph
    from dstack.analysis.views.timeline import Timeline
    from dstack.model.prediction import Prediction
    from dstack.model.profile import Profile
    from dstack.model.snapshot import Snapshot

SUFFIXES = (".json", ".json.gz")
Format = Literal["text", "svg", "png", "dot", "json"]
POSSIBLE = 1
"""The exit code of ``predict --error``."""
MOST_FILES = 20
"""The most snapshots that a prediction is made from, the newest ones."""
FORMATS: dict[str, Format] = {
    ".svg": "svg", ".png": "png", ".dot": "dot", ".gv": "dot", ".json": "json", ".txt": "text"
}  # fmt: skip
"""The formats by the suffix of the output file."""
NEXT: dict[Format, str] = {
    "text": "See it with: less {file}",
    "svg": "Open it in a browser.",
    "png": "Open it in an image viewer.",
    "dot": "Draw it with: dot -Tsvg -O {file}",
    "json": "See it with: less {file}",
}


@click.command()
@click.argument("file", required=False, type=click.Path())
@address_option
@click.option("-o", "--output", metavar="FILE", help="Write the trace: .json, .json.gz, or - for standard output.")
@force_option
@job_option
@click.option(
    "--what-if",
    "questions",
    metavar="CHANGE",
    multiple=True,
    help='Predict a change: "FUNCTION=2x", "CLASS=3 actors", "CPU=16" or "FUNCTION without RESOURCE". Commas join'
    " changes; repeat the option for another question.",
)
@timeout_option
def timeline(
    file: str | None,
    address: str | None,
    output: str | None,
    force: bool,
    job: str | None,
    questions: tuple[str, ...],
    timeout_s: float,
) -> None:
    """Show when each task waited and ran, and what would help most.

    Inspects a running cluster, or FILE, a saved snapshot. With -o, write a trace for https://ui.perfetto.dev or
    chrome://tracing; else print a summary, which ends with the critical path: what determined how long the run
    took, and the changes that would help the most.
    """
    if output and questions:
        raise UsageError("--what-if cannot be combined with -o.", "Leave out one of them.")
    if output:
        _require_writable(output, force=force)
    snapshot = snapshot_with_history(file, address, timeout_s)
    from dstack.analysis.naming.names import find_job
    from dstack.analysis.views.timeline import Timeline
    from dstack.processes.gc_pause import GcPause

    with GcPause():
        analysed = explained(snapshot)
        assert analysed.history is not None
        only = find_job(snapshot, job) if job else None
        shown = Timeline(analysed.history, analysed.diagnosis.vertices, stuck=analysed.diagnosis.stuck, job=only)
        if output:
            _write_trace(shown, output, force=force)
        what_ifs = _changes(shown, questions)
    _print_summary(shown, analysed, output, what_ifs)


def _changes(shown: Timeline, questions: Sequence[str]) -> list[list[Change]]:
    from dstack.analysis.history.what_if import changes_of

    if questions and shown.critical_path is None:
        raise UsageError("The history has no task that has ended.", "Take the snapshot later.")
    return [changes_of(question, shown.run) for question in questions]


def _require_writable(output: str, *, force: bool) -> None:
    require_new(output, force=force)
    if output != STDOUT and not output.endswith(SUFFIXES):
        raise UsageError(f"{output} does not end in .json or .json.gz.", "Use one of these suffixes, or - for stdout.")


def _write_trace(shown: Timeline, output: str, *, force: bool) -> None:
    from dstack.report.chrome_trace import chrome_trace

    with CleanUp():
        with show_progress("writing the trace"):
            data = chrome_trace(shown)
        if output == STDOUT:
            data += b"\n"
        elif output.endswith(".gz"):
            data = gzip.compress(data, compresslevel=6, mtime=0)
        write_file(output, data, force=force)


def _print_summary(
    shown: Timeline, analysed: AnalysedSnapshot, output: str | None, what_ifs: Sequence[Sequence[Change]]
) -> None:
    """Prints the summary; next to a trace it is short, and on standard error."""
    from dstack.report.summaries import print_timeline_summary, summary_lines

    if not output:
        print_text(console_text(lambda console: print_timeline_summary(console, shown, analysed, what_ifs)))
        return
    for line in summary_lines(shown, analysed):
        click.echo(visible(line), err=True)
    if output != "-":
        click.echo(f"Saved {visible(output)}. Open it in https://ui.perfetto.dev or chrome://tracing", err=True)


@click.command()
@click.argument("file", required=False, type=click.Path())
@address_option
@click.option(
    "--format",
    "wanted",
    type=click.Choice(["text", "svg", "png", "dot", "json"]),
    help="Format of the output. [default: by the suffix of -o, else text]",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default=STDOUT,
    help="Write to FILE: .svg, .png, .dot, .json, .txt, or - for standard output.",
)
@click.option("--force", is_flag=True, help="Overwrite the output file.")
@click.option(
    "--by",
    type=click.Choice(["class", "instance"]),
    default="class",
    show_default=True,
    help="One node for all actors of a class, or one for each actor.",
)
@click.option("--job", metavar="ID", help="Only the calls of one job: its id, submission id or script.")
@click.option("--profile", "profile_file", metavar="FILE", help="Add the data that passed while this profile ran.")
@timeout_option
def graph(
    file: str | None,
    address: str | None,
    wanted: Format | None,
    output: str,
    force: bool,
    by: By,
    job: str | None,
    profile_file: str | None,
    timeout_s: float,
) -> None:
    """Show what calls what, how often, and what waits.

    Inspects a running cluster, or FILE, a saved snapshot. Counts, rates, durations and failures come from the tasks
    that Ray remembers, the last 100,000 or so.
    """
    if file and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    if profile_file and by != "class":
        raise UsageError("--profile cannot be combined with --by instance.", "Leave out one of them.")
    form = wanted or _format_of(output)
    require_new(output, force=force)
    from dstack.collecting.collector import WHOLE_HISTORY, Terms
    from dstack.files.sampled_file import PROFILES

    profile = PROFILES.load(profile_file) if profile_file else None

    snapshot = load_snapshot(file) if file else take_snapshot(address, Terms(timeout_s, history=WHOLE_HISTORY))
    data = _document(snapshot, form, by, job, profile, is_on_screen=output == STDOUT)
    with CleanUp():
        write_file(output, data, force=force)
    if output != STDOUT:
        click.echo(f"Saved. {NEXT[form].format(file=visible(output))}", err=True)


def _format_of(output: str) -> Format:
    suffix = Path(output).suffix
    if output == STDOUT:
        return "text"
    if suffix not in FORMATS:
        raise UsageError(f"{output} ends in none of {listed(list(FORMATS))}.", "Use one of these, or add --format.")
    return FORMATS[suffix]


def _document(
    snapshot: Snapshot, form: Format, by: By, job: str | None, profile: Profile | None, *, is_on_screen: bool
) -> bytes:
    from dstack.analysis.naming.names import find_job
    from dstack.analysis.views.call_graph import CallGraph
    from dstack.report.summaries import in_words

    if lack := snapshot.lack_of_events:
        click.echo(f"Note: {in_words(lack)}", err=True)
    elif snapshot.history is None and form != "text":  # the text says so itself
        click.echo("Note: the history of tasks is missing, so only unfinished calls are known.", err=True)
    job_id = find_job(snapshot, job) if job is not None else None
    if profile and profile.address != snapshot.address:
        raise UsageError("The profile is of another cluster than the snapshot.", "Give two files of one cluster.")
    traffic = profile.traffic if profile else ()
    calls = CallGraph.of(explained(snapshot), by=by, job=job_id, traffic=traffic)
    if form == "text":
        return _text(calls, is_on_screen=is_on_screen)
    if form in ("svg", "png"):
        from dstack.report.graph_svg import png_file, svg_file
        from dstack.report.page.calls_section import drawing

        return png_file(drawing(calls)) if form == "png" else svg_file(drawing(calls)).encode()
    from dstack.report.graph_files import dot, graph_json

    return dot(calls) if form == "dot" else graph_json(calls, snapshot.taken_at)


def _text(calls: CallGraph, *, is_on_screen: bool) -> bytes:
    """The table, in colours and as wide as the terminal if it goes to one."""
    from dstack.report.calls_text import WIDTH, call_table, print_call_table

    def show(console: Console) -> None:
        console.width = console.width if console.is_terminal else WIDTH
        print_call_table(console, calls)

    if not is_on_screen:
        return call_table(calls).encode("utf-8", "backslashreplace")
    encoding = stdout_encoding()
    return encodable(console_text(show), encoding).encode(encoding, "backslashreplace")


@click.command()
@click.argument("files", nargs=-1, type=click.Path(), metavar="[FILE|DIR]...")
@address_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema dstack.predict/1), a document per cluster.")
@click.option("--error", "is_error", is_flag=True, help="Exit with 1 if there is a possible deadlock.")
@timeout_option
def predict(files: tuple[str, ...], address: str | None, as_json: bool, is_error: bool, timeout_s: float) -> None:
    """Show which deadlocks another order of the calls could reach.

    It finds them though this run did not hang. Reads Ray's task events of a running cluster, or of saved snapshots,
    and the source of the driver's program. The calls of a job that has ended are included as long as Ray keeps
    them; its source only if it is in a FILE. What one of several files of a cluster shows of a call counts for all
    of them.
    """
    if files and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    clusters = _saved_runs(files) if files else [[("", snapshot_with_history(None, address, timeout_s))]]
    from dstack.report.prediction_text import prediction_json, print_prediction

    is_possible = False
    for saved in clusters:
        prediction = _predicted([snapshot for _, snapshot in saved])
        is_possible = is_possible or bool(prediction.possible)
        if as_json:
            print_text(prediction_json(saved[0][1], prediction))
            continue
        title = f"{listed([name for name, _ in saved])}:\n" if len(clusters) > 1 else ""
        print_text(title + console_text(partial(print_prediction, prediction)))
    if is_possible and is_error:
        sys.exit(POSSIBLE)


def _saved_runs(names: Sequence[str]) -> list[list[tuple[str, Snapshot]]]:
    """The snapshots of files and directories with their names, the newest first, those of each cluster together.

    Raises :class:`UsageError` if those of a cluster have no history.
    """
    from dstack.analysis.views.snapshot_diff import is_same_cluster
    from dstack.cli.saved_files import open_files

    found = open_files(names)
    for error in found.skipped:
        click.echo(f"Note: left out: {error.message}", err=True)
    if not found.snapshots:
        raise UsageError("A prediction needs a snapshot.", "Take one with: dstack snapshot -o FILE")
    if (left_out := len(found.snapshots) - MOST_FILES) > 0:
        click.echo(f"Note: left out: {plural(left_out, 'older snapshot')}.", err=True)
    clusters: list[list[tuple[str, Snapshot]]] = []
    for file in reversed(found.snapshots[-MOST_FILES:]):
        snapshot = file.load()
        own = next((one for one in clusters if is_same_cluster(snapshot, one[-1][1])), None)
        if own is None:
            clusters.append(own := [])
        own.append((str(file.path), snapshot))
    for saved in clusters:
        if all(snapshot.history is None for _, snapshot in saved):
            require_history(saved[0][1], saved[0][0])
    return clusters


@show_progress("predicting")
def _predicted(snapshots: Sequence[Snapshot]) -> Prediction:
    """The prediction from all snapshots of one cluster, the newest first."""
    from dstack.analysis.predict import predict
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot

    seen = [AnalysedSnapshot.of(one) for one in snapshots]
    waits = frozenset[tuple[str, str]]().union(*(one.shown_waits for one in seen))
    outlines = [outline for one in reversed(snapshots) for outline in one.outlines]
    return predict([one.history for one in seen if one.history], waits, outlines)
