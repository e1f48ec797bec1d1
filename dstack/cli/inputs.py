"""What commands work on: options that several share, and a new snapshot of a running cluster or a saved one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click

from dstack.cli.output import show_progress
from dstack.errors import UsageError

if TYPE_CHECKING:
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.collecting.collector import Collector, Terms
    from dstack.model.snapshot import Snapshot


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
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the diagnosis as JSON (schema dstack.check/2)."
)
details_option = click.option("--details", is_flag=True, help="Print all members, stacks and failures too.")

pause_option = click.option(
    "--pause",
    is_flag=True,
    help="Pause running processes for exact stacks (py-spy); use Ray's agents for unreadable processes.",
)
native_option = click.option(
    "--native",
    is_flag=True,
    help="Include C and C++ frames, and stacks of Java and C++. Pauses each process for 0.1 s or more.",
)
no_logs_option = click.option("--no-logs", is_flag=True, help="Read no logs of the processes that findings concern.")
for_option = click.option(
    "--for",
    "watch_s",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Observe the cluster for progress this long, beyond --timeout. [default: about 1 s, only if needed]",
)
job_option = click.option("--job", metavar="ID", help="Only one job: its id, submission id or script.")
force_option = click.option("--force", is_flag=True, help="Overwrite the file of -o.")


nodes_settle_option = click.option(
    "--nodes-settle-after",
    "nodes_settle_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="What no node has is a hang once no node has joined or left for this long; five times that if one had it.",
)


def logs_to_read(no_logs: bool) -> Literal["concerned", "none"]:
    """What ``--no-logs`` says."""
    return "none" if no_logs else "concerned"


def terms_of(timeout_s: float, *, no_logs: bool) -> Terms:
    """The terms of commands without options that say how processes are read."""
    from dstack.collecting.collector import Terms
    from dstack.observed.reading_options import ReadingOptions

    return Terms(timeout_s, ReadingOptions(logs=logs_to_read(no_logs)))


def take_snapshot(address: str | None, terms: Terms) -> Snapshot:
    """Take a snapshot of a running cluster, and show the progress."""
    with _collector(address, terms) as (collector, note, began):
        return collector.take(note, began=began)


def take_analysed(
    analyse: Callable[[Snapshot], AnalysedSnapshot], address: str | None, terms: Terms
) -> AnalysedSnapshot:
    """Take snapshots until one is conclusive, as :meth:`Collector.take_analysed`, and show the progress."""
    with _collector(address, terms) as (collector, note, began):
        return collector.take_analysed(analyse, note, began=began)


@contextmanager
def _collector(address: str | None, terms: Terms) -> Iterator[tuple[Collector, Callable[[str], None], float | None]]:
    """A collector, a function that shows its steps, and when the command began."""
    from dstack.collecting.collector import Collector

    with show_progress() as progress:

        def note(step: str) -> None:
            progress(step)
            _load_explanation()

        began: float | None = click.get_current_context().find_root().obj
        with Collector(address, terms) as collector:
            yield collector, note, began


@show_progress("reading")
def load_snapshot(file: str) -> Snapshot:
    """Read a saved snapshot."""
    from dstack.files.snapshot_file import load

    return load(file)


def snapshot_with_history(file: str | None, address: str | None, timeout_s: float) -> Snapshot:
    """A saved snapshot, or a new one, with the history of its tasks.

    Raises :class:`UsageError` if both are given or the saved one has no history, and :class:`ClusterError` if a new one
    has none.
    """
    if file and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    if file:
        snapshot = load_snapshot(file)
        require_history(snapshot, file)
        return snapshot
    from dstack.collecting.collector import WHOLE_HISTORY, Terms
    from dstack.errors import ClusterError

    snapshot = take_snapshot(address, Terms(timeout_s, history=WHOLE_HISTORY))
    if snapshot.history is None:
        lack = snapshot.lack_of_events
        reason, remedy = (
            (lack.reason, lack.remedy) if lack else ("it was not returned in time", "Use a longer --timeout.")
        )
        raise ClusterError(f"The history of tasks is missing: {reason}.", remedy)
    return snapshot


def require_history(snapshot: Snapshot, file: str) -> None:
    """Raise :class:`UsageError` if a saved snapshot has no history of tasks."""
    if snapshot.history is None:
        lack = snapshot.lack_of_events
        reason, remedy = (f": {lack.reason}", lack.remedy) if lack else ("", "Take one with: dstack snapshot -o FILE")
        raise UsageError(f"{file} has no history of tasks{reason}.", remedy)


def _load_explanation() -> None:
    """Imports the analysis and the report, while the child process takes the snapshot."""
    from dstack.processes.gc_pause import GcPause

    with GcPause():
        import rich.console  # noqa: F401  # loaded for later

        import dstack.analysis.views.analysed_snapshot
        import dstack.analysis.views.node_resources
        import dstack.files.snapshot_file  # noqa: F401  # loaded for later
