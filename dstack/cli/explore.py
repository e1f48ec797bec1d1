"""The command ``explore``: runs a program under other schedules until one of its runs hangs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from dstack.cli.inputs import force_option
from dstack.cli.output import print_analysed, print_text
from dstack.cli.snapshots import INCONCLUSIVE, STUCK
from dstack.errors import DstackError, require_linux
from dstack.processes.signals import CleanUp
from dstack.words import visible

if TYPE_CHECKING:
    from dstack.explore.program_runs import Run
    from dstack.explore.search import Exploration, Search, Stage
    from dstack.explore.settings import Setting

RUNS, LIMIT_S = 20, 120.0
CPUS_A_RUN = 2
MEMORY_A_RUN = 3 << 29
"""1.5 GiB: a head node takes 0.7 GB, and a worker 50 MB or more."""
STAGES: Mapping[Stage, str] = {"search": "run", "shrink": "smaller", "repeat": "again"}
RUN_ALONE = "Run it by itself; explore needs a program that ends."


@click.command(epilog="dstack explore -- python app.py  runs a program again and again, each time on another schedule.")
@click.option("--runs", type=click.IntRange(min=1), metavar="N", help="How many runs. [default: 20, or 5 to repeat]")
@click.option("--seed", type=int, default=0, show_default=True, metavar="S", help="Another one gives other settings.")
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=0, min_open=True),
    default=LIMIT_S,
    show_default=True,
    metavar="SECONDS",
    help="End a run that has neither ended nor hung.",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="Runs at once. [default: one for every two CPUs and 1.5 GiB of free memory]",
)
@click.option("--kill", is_flag=True, help="In some runs, kill workers that run a task or an actor.")
@click.option("--no-shrink", is_flag=True, help="Do not look for the smallest setting that hangs.")
@click.option("--repeat", metavar="SETTING", help="Run the program under this setting only.")
@force_option
@click.option("-o", "--output", metavar="FILE", help="Where to save the hang. [default: explore-SEED-RUN.json.gz]")
@click.option("-v", "--verbose", is_flag=True, help="Print a line for each run.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, required=True)
def explore(
    runs: int | None,
    seed: int,
    limit_s: float,
    parallel: int | None,
    kill: bool,
    no_shrink: bool,
    repeat: str | None,
    force: bool,
    output: str | None,
    verbose: bool,
    program: tuple[str, ...],
) -> None:
    """Run a program on other schedules until it hangs.

    Each run has fresh clusters of its own, on which calls are delayed, CPUs are fewer, or workers stand still. dstack
    inspects them, and judges by what waits for what, not by a time limit.

    Exit codes: 0 no run hung, 1 one hung, 2 usage error, 3 the program fails by itself, 4 undecided: a run had neither
    ended nor hung within --limit, or no cluster was seen.
    """
    require_linux()
    if output:
        from dstack.files.snapshot_file import require_writable

        require_writable(output, force=force)
    from dstack.explore.program_runs import ProgramRuns
    from dstack.explore.search import REPEATS, Search
    from dstack.explore.settings import Setting

    setting = Setting.parsed(repeat) if repeat is not None else None
    count = runs or (RUNS if setting is None else REPEATS)
    at_once = parallel or _room()
    with (
        CleanUp(),
        _progress(count, verbose=verbose) as note,
        ProgramRuns(program, limit_s) as program_runs,
        Search(program_runs, parallel=at_once, note=note) as search,
    ):
        if setting is None:
            exploration = search.explore(seed, count, may_kill=kill, shrink=not no_shrink)
        else:
            exploration = _repeated(search, setting, count)
    _print(exploration, program)
    if exploration.found is not None:
        _save(exploration, output or f"explore-{seed}-{exploration.number}.json.gz", force=force or not output)
        sys.exit(STUCK)
    if not exploration.has_cluster or any(run.result == "undecided" for run in exploration.runs):
        sys.exit(INCONCLUSIVE)


def _room() -> int:
    """How many runs this machine has room for at once."""
    import psutil

    by_memory = psutil.virtual_memory().available // MEMORY_A_RUN
    return max(1, min((os.cpu_count() or 1) // CPUS_A_RUN, by_memory))


def _repeated(search: Search, setting: Setting, count: int) -> Exploration:
    """The runs of one setting; the first one that hung is what was found."""
    from dstack.explore.search import Exploration, Shrunk

    runs = search.repeat(setting, count)
    hung = [run for run in runs if run.result == "hang"]
    return Exploration(runs, hung[0], Shrunk(setting, len(hung), len(runs))) if hung else Exploration(runs)


def _print(exploration: Exploration, program: Sequence[str]) -> None:
    """Print the report of the hang, if there is one, and how the runs went."""
    from dstack.explore.texts import hang_lines, none_lines

    plain = exploration.runs[0]
    if exploration.found is None and len(exploration.runs) == 1 and plain.result == "failed":
        last = plain.last_lines[-1] if plain.last_lines else "no output"
        raise DstackError(f"The program fails without any change, with exit code {plain.exit_code}: {last}", RUN_ALONE)
    if exploration.found is not None and exploration.found.analysed is not None:
        print_analysed(exploration.found.analysed)
        print_text("\n")
    lines = none_lines(exploration) if exploration.found is None else hang_lines(exploration, program)
    print_text("".join(f"{line}\n" for line in lines))


def _save(exploration: Exploration, output: str, *, force: bool) -> None:
    """Save the snapshot of the hang, whose cluster is gone."""
    from dstack.files.snapshot_file import save

    if exploration.found is not None and exploration.found.analysed is not None:
        save(exploration.found.analysed.snapshot, output, force=force)
        click.echo(f"Saved. Show it again with: dstack show {visible(output)}", err=True)


@contextmanager
def _progress(count: int, *, verbose: bool) -> Iterator[Callable[[Stage, Run], None]]:
    """Shows a bar on standard error if that is a terminal, and else, or if ``verbose``, a line for each run."""
    from dstack.explore.texts import run_line

    is_terminal = sys.stderr.isatty()

    def line(stage: Stage, run: Run) -> None:
        if verbose or not is_terminal:
            click.echo(f"{STAGES[stage]}: {run_line(run)}", err=True)

    if not is_terminal:
        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    terminal = Console(stderr=True)
    with Progress(*columns, console=terminal, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task("the plain run", total=count + 1)

        def note(stage: Stage, run: Run) -> None:
            line(stage, run)
            is_search = stage == "search"
            bar.update(task, description=STAGES[stage], advance=1, total=count + 1 if is_search else None)

        yield note
