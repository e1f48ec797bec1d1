"""The ``dstack`` command. Each subcommand imports what it needs when it runs, so that help is instant."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from dstack.ending import Tidying, end
from dstack.errors import DstackError, UsageError, as_dstack_error
from dstack.version import __version__
from dstack.visible import encodable, visible, visible_lines

if TYPE_CHECKING:
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.diagnosis import Diagnosis, FailOn
    from dstack.model import Snapshot

STUCK, INCONCLUSIVE, NOBODY_READS = 1, 4, 141
EXPLAIN_S = 30.0
"""A snapshot that was taken within ``--timeout`` is explained within so long."""

address_option = click.option(
    "--address", metavar="HOST:PORT|auto", help="Address of the GCS. [default: RAY_ADDRESS, or the cluster here]"
)


def seconds_option(*names: str, default: float, help: str) -> Callable[[Any], Any]:
    """An option that takes a number of seconds."""
    seconds = click.FloatRange(min=0, min_open=True)
    return click.option(*names, type=seconds, default=default, show_default=True, metavar="SECONDS", help=help)


timeout_option = seconds_option(
    "--timeout", "timeout_s", default=30.0, help="Overall time limit; partial results are kept."
)
Form = Literal["report", "details", "json"]
"""What a snapshot is printed as."""
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the diagnosis as JSON (schema dstack.check/1)."
)
details_option = click.option("--details", is_flag=True, help="Print all members, stacks and failures too.")

pause_option = click.option(
    "--pause",
    is_flag=True,
    help="Pause running processes for exact stacks (py-spy); use Ray's agents for unreadable processes.",
)
for_option = click.option(
    "--for",
    "watch_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Observe the cluster for progress this long, beyond --timeout. [default: about 1 s, only if needed]",
)
job_option = click.option(
    "--job", metavar="ID", help="Show only the findings of one job: its id, submission id or script."
)


class Commands(click.Group):
    """Prints every known error as one line and a remedy, with its exit code; ends on Ctrl-C at once."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the subcommand."""
        try:
            return super().invoke(ctx)
        except DstackError as error:
            self._explain(ctx, error)
            _drop_what_cannot_be_printed()
            ctx.exit(error.exit_code)
        except KeyboardInterrupt as error:
            end(getattr(error, "number", signal.SIGINT))
        except BrokenPipeError:
            _end_at_once(NOBODY_READS)
        except click.ClickException as error:
            said = io.StringIO()
            error.show(said)
            click.echo(visible_lines(said.getvalue()), err=True, nl=False)
            ctx.exit(error.exit_code)
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            self._explain(ctx, as_dstack_error(error))
            ctx.exit(DstackError.exit_code)

    @staticmethod
    def _explain(ctx: click.Context, error: DstackError) -> None:
        if ctx.params.get("verbose"):
            import traceback

            click.echo(visible_lines(traceback.format_exc()), err=True, nl=False)
        click.secho(f"Error: {error.message}", fg="red", err=True)
        if error.remedy:
            click.echo(error.remedy, err=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Show the tracebacks of errors.")
@click.version_option(__version__, prog_name="dstack")
def main(verbose: bool) -> None:
    """Explain a hung Ray application from outside: what waits for what, what is deadlocked, and how to fix it.

    Exit codes: 0 success, 2 usage error, 3 cluster or file unreadable, 128 + N ended by signal N (130 for Ctrl-C).
    `check` adds 1 and 4.
    """
    if not verbose:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else it writes to stderr of every peer that went away


@main.command()
@address_option
@click.option("-o", "--output", metavar="FILE", help="Save the snapshot: .json, .json.gz, or - for standard output.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@json_option
@details_option
@job_option
@click.option("--native", is_flag=True, help="Include C and C++ frames. Pauses each process for 0.1 s or more.")
@click.option("--locals", "with_locals", is_flag=True, help="Include the values of local variables.")
@pause_option
@for_option
@click.option("--nonblocking", is_flag=True, hidden=True, help="No effect: this is the default.")
@timeout_option
def snapshot(
    address: str | None,
    output: str | None,
    force: bool,
    as_json: bool,
    details: bool,
    job: str | None,
    native: bool,
    with_locals: bool,
    pause: bool,
    watch_s: float | None,
    nonblocking: bool,
    timeout_s: float,
) -> None:
    """Take a snapshot of a running cluster and explain it."""
    form = _form(as_json, details)
    if nonblocking:
        _note_nonblocking(native=native, pause=pause)
    if output:
        from dstack.snapshot_file import require_writable

        require_writable(output, force=force)
    options = {"native": native, "locals": with_locals, "pause": pause}
    taken = _take(address, timeout_s, [name for name, is_on in options.items() if is_on], watch_s)
    try:
        if output:
            from dstack.snapshot_file import save

            with Tidying():
                save(taken, output, force=force)
    finally:  # print the report even if the file cannot be written
        if output != "-":
            _report(taken, form, job, within_s=EXPLAIN_S)
    if output and output != "-":
        click.echo(f"Saved. Show it again with: dstack show {visible(output)}", err=True)


@main.command()
@click.argument("file", required=False, type=click.Path())
@address_option
@json_option
@details_option
@job_option
@pause_option
@for_option
@click.option(
    "--fail-on",
    type=click.Choice(["deadlock", "stalled", "starved"]),
    default="deadlock",
    show_default=True,
    help="Exit with 1 on this or worse: deadlock (includes hang and suspected deadlock), stalled, starved.",
)
@timeout_option
def check(
    file: str | None,
    address: str | None,
    as_json: bool,
    details: bool,
    job: str | None,
    pause: bool,
    watch_s: float | None,
    fail_on: FailOn,
    timeout_s: float,
) -> None:
    """Exit with 1 on a deadlock or hang. Inspects a running cluster, or FILE.

    Exit codes: 0 none found, 1 deadlock or hang (see --fail-on), 2 usage error, 3 cluster or file unreadable,
    4 inconclusive: too little could be read.
    """
    form = _form(as_json, details)
    if file and (address or pause or watch_s is not None):
        raise UsageError(
            "FILE cannot be combined with --address, --pause or --for.", "Leave out FILE or these options."
        )
    if file:
        diagnosis = _report(_load(file), form, job)
    else:
        taken = _take(address, timeout_s, ["pause"] if pause else (), watch_s)
        diagnosis = _report(taken, form, job, within_s=EXPLAIN_S)
    if diagnosis.fails(fail_on):
        sys.exit(STUCK)
    if diagnosis.incomplete:
        sys.exit(INCONCLUSIVE)


@main.command()
@click.argument("file", type=click.Path())
@json_option
@details_option
@job_option
def show(file: str, as_json: bool, details: bool, job: str | None) -> None:
    """Explain a saved snapshot. Needs no cluster."""
    form = _form(as_json, details)
    _report(_load(file), form, job)


@main.command()
@click.argument("files", nargs=-1, type=click.Path(), metavar="[FILE]...")
@address_option
@timeout_option
def tui(files: tuple[str, ...], address: str | None, timeout_s: float) -> None:
    """Explore a hang in the terminal. Inspects a running cluster, or saved snapshots."""
    if files and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    is_served = "TEXTUAL_DRIVER" in os.environ  # to a browser, by textual-serve
    if not is_served and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("The terminal UI needs a terminal.", "Without a terminal use: dstack snapshot")
    from dstack.tui import run
    from dstack.tui.source import Files, Source

    if files:
        snapshots = sorted(map(_load, files), key=lambda one: one.taken_at)
        source: Source = Files(", ".join(map(os.path.basename, files)), snapshots)
    else:
        from dstack.collector import Collector

        source = Collector(address, timeout_s)
    with Tidying():
        ended_by = run(source)
    if ended_by is not None:
        end(ended_by)


@main.command()
@address_option
@click.option("--dir", "directory", required=True, type=click.Path(), help="Directory for the snapshots of findings.")
@click.option(
    "--keep", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number of snapshots to keep."
)
@seconds_option("--every", default=30.0, help="Pause between polls, which read no stacks.")
@seconds_option(
    "--stuck-after", default=60.0, help="Take a snapshot when something has made no progress for this long."
)
@click.option(
    "--share",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Maximum CPU use of snapshots, in percent of one core on average.",
)
@click.option(
    "--on-finding",
    "command",
    metavar="CMD",
    help="Shell command to run for each new finding, which it gets as JSON on stdin.",
)
@click.option(
    "--metrics", metavar="[HOST:]PORT", help="Serve Prometheus metrics, on this host only unless HOST is given."
)
@click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON.")
@timeout_option
def watch(address: str | None, every: float, stuck_after: float, share: float, timeout_s: float, **rest: Any) -> None:
    """Monitor a running cluster and alert when something is stuck.

    Frequent polls read only the control plane and the counters of the workers. When something has made no progress,
    dstack takes a snapshot with stacks. SIGTERM ends the command with exit code 0.
    """
    from dstack.watch import Settings, Terminated
    from dstack.watch import watch as begin

    times: dict[str, Any] = {"every_s": every, "stuck_after_s": stuck_after, "timeout_s": timeout_s}
    try:
        begin(Settings(address=address, share=share / 100, **times, **rest))
    except Terminated:
        _end_at_once(0)


@main.command()
@click.argument("name", default="two_actors")
@click.option("--list", "list_them", is_flag=True, help="List the examples.")
def demo(name: str, list_them: bool) -> None:
    """Run an example that hangs, and explain it. Starts a small local cluster."""
    from dstack import examples

    if list_them:
        summaries = examples.summaries()
        width = max(map(len, summaries))
        for known, summary in summaries.items():
            click.echo(f"{known:{width}}  {summary}")
        return
    path = examples.find(name)
    from dstack import capture
    from dstack.probes.connection.local_cluster import running_example

    click.echo(f"Running {path}", err=True)
    with _progress() as progress:
        progress("starting Ray")
        with running_example(path) as address:
            taken = capture.settled_snapshot(address, progress=progress)
    _report(taken)


def _note_nonblocking(*, native: bool, pause: bool) -> None:
    """Notes that ``--nonblocking`` is obsolete. Raises :class:`UsageError` if another option contradicts it."""
    if native:
        raise UsageError("--native pauses processes, which --nonblocking forbids.", "Leave out one of them.")
    if pause:
        raise UsageError("--pause pauses processes, which --nonblocking forbids.", "Leave out one of them.")
    click.echo("note: --nonblocking is the default and has no effect", err=True)


def _take(
    address: str | None, timeout_s: float, options: Collection[str] = (), watch_s: float | None = None
) -> Snapshot:
    from dstack.collector import Collector

    with _progress() as progress:

        def note(step: str) -> None:
            progress(step)
            _load_explanation()

        return Collector(address, timeout_s, options, watch_s).take(note)


def _load_explanation() -> None:
    """Imports what explains a snapshot; on the first progress, while another process takes the snapshot."""
    from dstack.loading import Loading

    with Loading():
        import rich.console  # noqa: F401  # loaded for later

        import dstack.analysis.views.analysed_snapshot
        import dstack.report.text
        import dstack.snapshot_file  # noqa: F401  # loaded for later


def _load(file: str) -> Snapshot:
    from dstack.snapshot_file import load

    return load(file)


def _form(as_json: bool, details: bool) -> Form:
    if as_json and details:
        raise UsageError("--details cannot be combined with --json, which has all data.", "Leave out one of them.")
    return "json" if as_json else "details" if details else "report"


def _report(
    taken: Snapshot, form: Form = "report", job: str | None = None, *, within_s: float | None = None
) -> Diagnosis:
    """Explains a snapshot, within a time if one is given, and prints that; a reader may take its time."""
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot

    with _ended_after(within_s):
        analysed = AnalysedSnapshot.of(taken, job=job)
        text = _rendered(analysed, form)
    try:
        if isinstance(text, bytes):
            sys.stdout.buffer.write(text)
        else:
            sys.stdout.write(encodable(text, sys.stdout.encoding or "utf-8"))
        sys.stdout.flush()
    except BrokenPipeError:
        _stop_printing()
    except OSError as error:
        raise DstackError(f"Cannot write to standard output: {error.strerror}.") from error
    return analysed.diagnosis


def _rendered(analysed: AnalysedSnapshot, form: Form) -> str | bytes:
    if form == "json":
        from dstack.report.check_json import check_json

        return check_json(analysed)
    from rich.console import Console

    from dstack.report.text import print_report

    console = Console(highlight=False)
    with console.capture() as capture:
        print_report(console, analysed, details=form == "details")
    return capture.get()


@contextmanager
def _ended_after(seconds: float | None) -> Iterator[None]:
    """Ends the command, with a sentence and an exit code, if the code within takes longer."""
    if seconds is None:
        yield
        return
    timer = threading.Timer(seconds, _give_up, [seconds])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _give_up(seconds: float) -> NoReturn:
    error = DstackError(
        f"The analysis of the snapshot did not finish within {seconds:g} s.",
        "Analyse it without a time limit: dstack snapshot -o FILE, then dstack show FILE.",
    )
    with suppress(OSError):
        click.echo(f"Error: {error.message}\n{error.remedy}", err=True)
    _end_at_once(error.exit_code)


def _drop_what_cannot_be_printed() -> None:
    """What is left for a standard output that takes nothing would fail again, in Python's words, when all ends."""
    try:
        sys.stdout.flush()
    except OSError:
        _stop_printing()


def _stop_printing() -> None:
    """For whoever has read enough, as `head` has: what else is printed goes nowhere, and the exit code stays right."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _end_at_once(code: int) -> NoReturn:
    """Ends this process without a regard for threads that wait for somebody's answer."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Tells on a terminal's stderr what is being done; silent elsewhere. No telling waits for a terminal to take it."""
    with Tidying():
        if not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        from dstack.report.safe_text import SafeText

        spinner = Spinner("dots", "connecting")
        terminal = Console(stderr=True)
        with Live(spinner, console=terminal, transient=True, redirect_stdout=False, redirect_stderr=False):
            yield lambda text: spinner.update(text=SafeText(text))
