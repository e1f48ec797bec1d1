"""The commands ``stacks`` and ``logs``: what processes do, and what they printed last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from dstack.cli import inputs
from dstack.errors import UsageError
from dstack.words import plural, visible

if TYPE_CHECKING:
    from dstack.analysis.views.all_stacks import By, ChosenStacks
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.observed.node import LogTail

StacksFormat = Literal["text", "folded", "speedscope", "json"]
NEXT: dict[StacksFormat, str] = {
    "folded": "Draw a flame graph with: flamegraph.pl {file} > flame.svg",
    "speedscope": "Open it at https://www.speedscope.app",
}
"""What to do with a file of some formats."""
NO_FINDING = "Show the findings with: dstack check"
NO_LOG = "Output to a terminal or a pipe is kept nowhere; a saved snapshot has only the logs of its findings."


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


@click.command()
@click.argument("who", required=False, default="")
@click.option("--finding", type=click.IntRange(min=1), metavar="N", help="Of the processes of finding N of the report.")
@click.option(
    "--file", type=click.Path(), metavar="FILE", help="From a saved snapshot, which has those of its findings."
)
@inputs.address_option
@inputs.timeout_option
def logs(who: str, finding: int | None, file: str | None, address: str | None, timeout_s: float) -> None:
    """Print the last lines of logs: of the processes with the words WHO, or of a finding.

    WHO are words of an actor, call, function, file, process ("pid 7"), rank (rank:3) or node ("node 10.0.0.1"), also of
    its raylet ("raylet"). Of each log there are the last lines, and before them those that say something known.
    """
    from dstack.cli.output import console_text, print_text

    if bool(who) == bool(finding):
        raise UsageError("Give either WHO or --finding N.", 'For example: dstack logs "pid 7"')
    if file and address:
        raise UsageError("--file cannot be combined with --address.", "Leave out one of them.")
    if file:
        snapshot = inputs.load_snapshot(file)
    else:
        from dstack.collecting.collector import Terms
        from dstack.observed.reading_options import ReadingOptions

        options = ReadingOptions(logs="all" if who else "concerned")
        snapshot = inputs.take_snapshot(address, Terms(timeout_s, options))
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.report.logs_text import log_rows
    from dstack.report.rich_text import print_rows

    analysed = AnalysedSnapshot.of(snapshot)
    tails = _tails(analysed, who, finding)
    print_text(console_text(lambda console: print_rows(console, log_rows(analysed, tails))))


def _tails(analysed: AnalysedSnapshot, who: str, finding: int | None) -> list[LogTail]:
    """Raises :class:`UsageError` if there is no such finding, no such process, or no log of it."""
    from dstack.analysis.stacks.stack_tree import TextFilter
    from dstack.report.logs_text import tails_of_finding, tails_of_nodes, tails_of_workers

    if finding is not None:
        findings = analysed.diagnosis.findings
        if finding > len(findings):
            raise UsageError(f"The report has {plural(len(findings), 'finding')}, so no finding {finding}.", NO_FINDING)
        tails = tails_of_finding(analysed, findings[finding - 1])
    else:
        words = TextFilter(who)
        workers, of_nodes = analysed.stacks.found(words), tails_of_nodes(analysed, words)
        if not workers and not of_nodes:
            raise UsageError(f"No process has the words {who!r}.", "List them with: dstack stacks --by process")
        tails = [*of_nodes, *tails_of_workers(analysed, workers)]
    if not tails:
        raise UsageError("These processes have written no log that can be read.", NO_LOG)
    return tails
