"""The command ``graph``: the calls of an application as text, JSON, or DOT for Graphviz."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from dstack.cli.inputs import load_snapshot, take_snapshot
from dstack.cli.options import address_option, timeout_option
from dstack.errors import UsageError
from dstack.file_output import STDOUT, require_new, write_file
from dstack.signals import CleanUp
from dstack.visible import encodable, visible

if TYPE_CHECKING:
    from dstack.analysis.history.call_nodes import By
    from dstack.analysis.views.call_graph import CallGraph
    from dstack.model import Snapshot

Format = Literal["text", "dot", "json"]
SUFFIXES: dict[str, Format] = {".dot": "dot", ".gv": "dot", ".json": "json"}
"""The formats by the suffix of the output file; others are text."""


@click.command()
@click.argument("file", required=False, type=click.Path())
@address_option
@click.option(
    "--format",
    "wanted",
    type=click.Choice(["text", "dot", "json"]),
    help="Format of the output. [default: by the suffix of -o, .dot or .json, else text]",
)
@click.option("-o", "--output", metavar="FILE", default=STDOUT, help="Write to FILE; - is standard output.")
@click.option("--force", is_flag=True, help="Overwrite the output file.")
@click.option(
    "--by",
    type=click.Choice(["class", "instance"]),
    default="class",
    show_default=True,
    help="One node for all actors of a class, or one for each actor.",
)
@click.option("--job", metavar="ID", help="Only the calls of one job: its id, submission id or script.")
@timeout_option
def graph(
    file: str | None,
    address: str | None,
    wanted: Format | None,
    output: str,
    force: bool,
    by: By,
    job: str | None,
    timeout_s: float,
) -> None:
    """Show what calls what: of a running cluster, or in FILE, a saved snapshot.

    Counts, rates, durations and failures come from the tasks that Ray remembers, the last 100,000 or so.
    """
    if file and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    require_new(output, force=force)
    snapshot = load_snapshot(file) if file else _new_snapshot(address, timeout_s)
    form = wanted or SUFFIXES.get(Path(output).suffix, "text")
    data = _document(snapshot, form, by, job, is_on_screen=output == STDOUT)
    with CleanUp():
        write_file(output, data, force=force)
    if output != STDOUT and form == "dot":
        picture = visible(str(Path(output).with_suffix(".svg")))
        click.echo(f"Saved. Draw it with: dot -Tsvg -o {picture} {visible(output)}", err=True)
    elif output != STDOUT:
        click.echo(f"Saved. See it with: less {visible(output)}", err=True)


def _new_snapshot(address: str | None, timeout_s: float) -> Snapshot:
    from dstack.collector import WHOLE_HISTORY

    return take_snapshot(address, timeout_s, history=WHOLE_HISTORY)


def _document(snapshot: Snapshot, form: Format, by: By, job: str | None, *, is_on_screen: bool) -> bytes:
    from dstack.analysis.naming.job_selection import find_job
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.analysis.views.call_graph import CallGraph

    if snapshot.history is None and form != "text":  # the text says so itself
        click.echo("Note: the history of tasks is missing, so only unfinished calls are known.", err=True)
    job_id = find_job(snapshot, job) if job is not None else None
    calls = CallGraph.of(AnalysedSnapshot.of(snapshot), by=by, job=job_id)
    if form == "dot":
        from dstack.report.exporters.dot import dot

        return dot(calls)
    if form == "json":
        from dstack.report.exporters.graph_json import graph_json

        return graph_json(calls, snapshot.taken_at)
    return _text(calls, is_on_screen=is_on_screen)


def _text(calls: CallGraph, *, is_on_screen: bool) -> bytes:
    """The table, in colours and as wide as the terminal if it goes to one."""
    from rich.console import Console

    from dstack.report.calls_text import WIDTH, call_table, print_call_table

    if not is_on_screen:
        return call_table(calls).encode("utf-8", "backslashreplace")
    console = Console(highlight=False)
    console.width = console.width if console.is_terminal else WIDTH
    with console.capture() as captured:
        print_call_table(console, calls)
    encoding = sys.stdout.encoding or "utf-8"
    return encodable(captured.get(), encoding).encode(encoding, "backslashreplace")
