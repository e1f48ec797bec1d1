"""The commands ``stacks`` and ``logs``: what processes do, and what they printed last."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import click

from dstack.cli import inputs
from dstack.cli.output import console_text, explained, print_text, show_progress
from dstack.errors import UsageError
from dstack.words import plural, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dstack.analysis.views.all_stacks import By, ChosenStacks
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.analysis.views.process_names import ProcessNames, Selection
    from dstack.observed.node import LogTail

StacksFormat = Literal["text", "folded", "speedscope", "json"]
NEXT: dict[StacksFormat, str] = {
    "folded": "Draw a flame graph with: flamegraph.pl {file} > flame.svg",
    "speedscope": "Open it at https://www.speedscope.app",
}
"""What to do with a file of some formats."""
NO_FINDING = "Show the findings with: dstack check"
NO_LOG = "Output to a terminal or a pipe is kept nowhere; a saved snapshot has only the logs of its findings."
SUFFIXES = (".json", ".json.gz")
LIST = "List them with: dstack stacks --by process"


@click.command()
@click.argument("words", nargs=-1, type=click.Path(), metavar="[FILE] [WHAT]...")
@inputs.address_option
@click.option(
    "--by",
    type=click.Choice(["class", "rank", "process"]),
    help="Merge the stacks of each class or of equal ranks, or list each process. [default: class; process with WHAT]",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "folded", "speedscope", "json"]),
    help="Text, JSON (schema dstack.stacks/1), folded stacks, or a file for speedscope. [default: text]",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("-o", "--output", metavar="FILE", default="-", help="Write to FILE. [default: standard output]")
@inputs.force_option
@click.option("--whole", is_flag=True, help="Include the frames of Ray and libraries.")
@inputs.job_option
@inputs.native_option
@inputs.pause_option
@inputs.timeout_option
def stacks(
    words: tuple[str, ...],
    address: str | None,
    by: By | None,
    format_: StacksFormat | None,
    as_json: bool,
    output: str,
    force: bool,
    whole: bool,
    job: str | None,
    native: bool,
    pause: bool,
    timeout_s: float,
) -> None:
    """Print the stacks of all processes, or of some.

    Inspects a running cluster, or FILE, a saved snapshot. WHAT is a pid, an actor by class, name or id, a function, a
    script, a node or a rank (rank:3), else words of these and of frames. Its stacks are not merged.
    """
    from dstack.files.file_output import STDOUT, require_new, write_file

    chosen_format = _format(format_, as_json=as_json)
    file, names = _file_and_names(words)
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

    analysed, is_text = explained(snapshot), chosen_format == "text"
    only = _selected(analysed, names) if names else None
    by = by or ("process" if names else "class")
    chosen = ChosenStacks(analysed.stacks, job=job, only=only, whole=whole or native, unfolded=not is_text)
    if chosen_format == "text" and output == STDOUT:
        _print_text(chosen, by)
        return
    write_file(output, _document(chosen, by, chosen_format), force=force)
    if output != STDOUT:
        after = NEXT.get(chosen_format, "").format(file=visible(output))
        click.echo(f"Saved {visible(output)}. {after}".rstrip(), err=True)


def _file_and_names(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The saved snapshot among the arguments, and the names of processes."""
    files = [one for one in words if one.endswith(SUFFIXES) or os.sep in one or os.path.isfile(one)]
    files = files or [one for one in words if os.path.isdir(one)]
    if len(files) > 1:
        raise UsageError(f"{' and '.join(files)} are {len(files)} files.", "Give one of them.")
    return next(iter(files), None), [one for one in words if one not in files]


def _selected(analysed: AnalysedSnapshot, names: Sequence[str]) -> Selection:
    """All that has one of the names. Raises :class:`UsageError` for a name that nothing has."""
    from dstack.analysis.views.process_names import ProcessNames, joined

    known = ProcessNames(analysed.stacks)
    selected: Selection = {}
    for name in joined(names):
        if not (found := known.called(name)):
            raise _unknown(known, name)
        for worker_id, keys in found.items():
            is_whole = not keys or not selected.get(worker_id, keys)
            selected[worker_id] = set() if is_whole else selected.get(worker_id, set()) | keys
    return selected


def _unknown(known: ProcessNames, name: str) -> UsageError:
    return UsageError(f"No process is called {name!r}.", f"{known.close_to(name)}{LIST}")


def _format(format_: StacksFormat | None, *, as_json: bool) -> StacksFormat:
    if as_json and format_ not in (None, "json"):
        raise UsageError(f"--json cannot be combined with --format {format_}.", "Leave out one of them.")
    return "json" if as_json else format_ or "text"


@show_progress("writing")
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
    from dstack.report.stacks_text import print_all_stacks

    print_text(console_text(lambda console: print_all_stacks(console, chosen, by)))


@click.command()
@click.argument("words", nargs=-1, type=click.Path(), metavar="[FILE] [WHAT]...")
@click.option("--finding", type=click.IntRange(min=1), metavar="N", help="Of the processes of finding N of the report.")
@inputs.address_option
@inputs.timeout_option
def logs(words: tuple[str, ...], finding: int | None, address: str | None, timeout_s: float) -> None:
    """Print the last lines of the logs of some processes.

    WHAT is as for dstack stacks; a node is also its raylet and agent, and "raylet" those of all nodes. Of each log
    there are the last lines, and before them those that say something known. FILE, a saved snapshot, has those of
    its findings.
    """
    file, names = _file_and_names(words)
    if bool(names) == bool(finding):
        raise UsageError("Give either WHAT or --finding N.", "For example: dstack logs Trainer")
    if file and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    if file:
        snapshot = inputs.load_snapshot(file)
    else:
        from dstack.collecting.collector import Terms
        from dstack.observed.reading_options import ReadingOptions

        options = ReadingOptions(logs="all" if names else "concerned")
        snapshot = inputs.take_snapshot(address, Terms(timeout_s, options))
    from dstack.report.logs_text import log_rows
    from dstack.report.rich_text import print_rows

    analysed = explained(snapshot)
    tails = _tails(analysed, finding) if finding else _tails_of(analysed, names)
    if not tails:
        raise UsageError("These processes have written no log that can be read.", NO_LOG)
    print_text(console_text(lambda console: print_rows(console, log_rows(analysed, tails))))


def _tails(analysed: AnalysedSnapshot, finding: int) -> list[LogTail]:
    """Raises :class:`UsageError` if there is no such finding."""
    from dstack.report.logs_text import tails_of_finding

    findings = analysed.diagnosis.findings
    if finding > len(findings):
        raise UsageError(f"The report has {plural(len(findings), 'finding')}, so no finding {finding}.", NO_FINDING)
    return tails_of_finding(analysed, findings[finding - 1])


def _tails_of(analysed: AnalysedSnapshot, names: Sequence[str]) -> list[LogTail]:
    """The logs of nodes and processes. Raises :class:`UsageError` for a name that none has."""
    from dstack.analysis.stacks.stack_tree import TextFilter
    from dstack.analysis.views.process_names import ProcessNames, joined
    from dstack.report.logs_text import tails_of_nodes, tails_of_workers

    known = ProcessNames(analysed.stacks)
    tails: list[LogTail] = []
    for name in joined(names):
        workers = known.called(name)
        of_nodes = [] if name.isdigit() else tails_of_nodes(analysed, TextFilter(name))
        if not workers and not of_nodes:
            raise _unknown(known, name)
        tails += (*of_nodes, *tails_of_workers(analysed, workers))
    return tails
