"""The command ``stacks``: all stacks of a cluster, merged or process by process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from dstack.cli import inputs
from dstack.errors import UsageError
from dstack.words import visible

if TYPE_CHECKING:
    from dstack.analysis.views.all_stacks import By, ChosenStacks

StacksFormat = Literal["text", "folded", "speedscope", "json"]
NEXT: dict[StacksFormat, str] = {
    "folded": "Draw a flame graph with: flamegraph.pl {file} > flame.svg",
    "speedscope": "Open it at https://www.speedscope.app",
}
"""What to do with a file of some formats."""


@click.command()
@click.argument("file", required=False, type=click.Path())
@inputs.address_option
@click.option(
    "--by",
    type=click.Choice(["class", "rank", "process"]),
    default="class",
    show_default=True,
    help="Merge the stacks of each class or of equal ranks, or list each process.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "folded", "speedscope", "json"]),
    help="Text, JSON (schema dstack.stacks/1), folded stacks, or a file for speedscope. [default: text]",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("-o", "--output", metavar="FILE", default="-", help="Write to FILE. [default: standard output]")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@click.option("--whole", is_flag=True, help="Include the frames of Ray and libraries.")
@click.option(
    "--only",
    metavar="TEXT",
    default="",
    help="Only stacks with these words: of an actor, call, function, file, process (pid 7) or rank (rank:3).",
)
@inputs.job_option
@inputs.native_option
@inputs.pause_option
@inputs.timeout_option
def stacks(
    file: str | None,
    address: str | None,
    by: By,
    format_: StacksFormat | None,
    as_json: bool,
    output: str,
    force: bool,
    whole: bool,
    only: str,
    job: str | None,
    native: bool,
    pause: bool,
    timeout_s: float,
) -> None:
    """Print all stacks of a running cluster, or of FILE: merged, with their numbers, or process by process."""
    from dstack.files.file_output import STDOUT, require_new, write_file

    chosen_format = _format(format_, as_json=as_json)
    if file and (address or native or pause):
        raise UsageError("FILE cannot be combined with --address, --native or --pause.", "Leave out one of them.")
    require_new(output, force=force)
    if file:
        snapshot = inputs.load_snapshot(file)
    else:
        from dstack.collecting.collector import Terms
        from dstack.observed.reading_options import ReadingOptions

        snapshot = inputs.take_snapshot(address, Terms(timeout_s, ReadingOptions(native=native, pause=pause)))
    from dstack.analysis.views.all_stacks import ChosenStacks
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot

    analysed, is_text = AnalysedSnapshot.of(snapshot), chosen_format == "text"
    chosen = ChosenStacks(analysed.stacks, job=job, only=only, whole=whole or native, unfolded=not is_text)
    if chosen_format == "text" and output == STDOUT:
        _print_text(chosen, by)
        return
    write_file(output, _document(chosen, by, chosen_format), force=force)
    if output != STDOUT:
        after = NEXT.get(chosen_format, "").format(file=visible(output))
        click.echo(f"Saved {visible(output)}. {after}".rstrip(), err=True)


def _format(format_: StacksFormat | None, *, as_json: bool) -> StacksFormat:
    if as_json and format_ not in (None, "json"):
        raise UsageError(f"--json cannot be combined with --format {format_}.", "Leave out one of them.")
    return "json" if as_json else format_ or "text"


def _document(chosen: ChosenStacks, by: By, format_: StacksFormat) -> bytes:
    if format_ == "text":
        from dstack.report.rich_text import plain_text
        from dstack.report.stacks_text import print_all_stacks

        return plain_text(lambda console: print_all_stacks(console, chosen, by)).encode()
    from dstack.report.stacks_files import folded, speedscope, stacks_json

    if format_ == "json":
        return stacks_json(chosen, by)
    return (folded if format_ == "folded" else speedscope)(chosen.weighted(by))


def _print_text(chosen: ChosenStacks, by: By) -> None:
    """Prints the text; in colours, and as wide as the window, only on a terminal."""
    from dstack.cli.output import console_text, print_text
    from dstack.report.stacks_text import print_all_stacks

    print_text(console_text(lambda console: print_all_stacks(console, chosen, by)))
