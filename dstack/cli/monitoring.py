"""The commands that stay with a cluster: ``tui``, ``top``, ``watch`` and ``mcp``, the server for coding assistants."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from dstack.cli.inputs import address_option, load_snapshot, no_logs_option, seconds_option, terms_of, timeout_option
from dstack.cli.output import end_at_once
from dstack.errors import UsageError, require_linux
from dstack.processes.signals import CleanUp, end

PROFILE_HZ = 1.0
"""The rate of a watch's profile by default."""


@click.command()
@click.argument("files", nargs=-1, type=click.Path(), metavar="[FILE|DIR]...")
@address_option
@no_logs_option
@timeout_option
def tui(files: tuple[str, ...], address: str | None, no_logs: bool, timeout_s: float) -> None:
    """Explore a hang in the terminal.

    Inspects a running cluster, or saved snapshots, recordings and profiles. All snapshots of a DIR, such as that of
    dstack watch, are replayed: [ and ] step through them, P plays them.
    """
    _explore(files, address, no_logs=no_logs, timeout_s=timeout_s)


@click.command()
@address_option
@no_logs_option
@timeout_option
def top(address: str | None, no_logs: bool, timeout_s: float) -> None:
    """Show a running cluster live in the terminal.

    Verdict, tasks per second, load of the nodes, what is slow and what is stuck; the same as dstack tui without files.
    Polls read no stacks; a snapshot is taken after tasks, workers or nodes have changed.
    """
    _explore((), address, no_logs=no_logs, timeout_s=timeout_s)


def _explore(files: tuple[str, ...], address: str | None, *, no_logs: bool, timeout_s: float) -> None:
    """Run the terminal UI."""
    if files and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    if not files:
        require_linux()
    is_served = "TEXTUAL_DRIVER" in os.environ  # to a browser, by textual-serve
    if not is_served and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("The terminal UI needs a terminal.", "Without a terminal use: dstack snapshot")
    collector = None
    if not files:
        from dstack.collecting.collector import Collector

        collector = Collector(address, terms_of(timeout_s, no_logs=no_logs))
        collector.start()
    from dstack.tui import run
    from dstack.tui.snapshot_sources import Files, OpenedRecording, Source

    opened: list[OpenedRecording] = []
    source: Source
    if collector is None:
        from dstack.cli.saved_files import open_files

        found = open_files(files)
        opened = [OpenedRecording(name, recording) for name, recording in found.recordings]
        names = (os.path.basename(os.path.normpath(file)) for file in files)
        source = Files(", ".join(names), found.snapshots, [error.message for error in found.skipped])
    else:
        source = collector
    with CleanUp():
        ended_by = run(source, opened)
    if ended_by is not None:
        end(ended_by)


@click.command()
@address_option
@click.option("--dir", "directory", required=True, type=click.Path(), help="Directory for the snapshots of findings.")
@click.option(
    "--keep", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number of snapshots to keep."
)
@click.option("--html", is_flag=True, help="Save an HTML page beside each snapshot, under its name.")
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
    "--profile", "has_profile", is_flag=True, help="Keep a profile of the last two hours, as by --profile-rate 1."
)
@click.option(
    "--profile-rate",
    "profile_hz",
    type=click.FloatRange(min=0.1, max=50),
    metavar="HZ",
    help="Keep a profile of the last two hours, with so many samples per second.",
)
@click.option(
    "--predict",
    is_flag=True,
    help="Report deadlocks that another order of the calls could reach; takes snapshots while all is well, too.",
)
@click.option(
    "--metrics", metavar="[HOST:]PORT", help="Serve Prometheus metrics, on this host only unless HOST is given."
)
@click.option("--json", "as_json", is_flag=True, help="Print each event as one line of JSON.")
@no_logs_option
@timeout_option
def watch(
    address: str | None,
    every: float,
    stuck_after: float,
    share: float,
    timeout_s: float,
    has_profile: bool,
    profile_hz: float | None,
    **rest: Any,
) -> None:
    """Monitor a cluster, and alert when something is stuck.

    Frequent polls read only the control plane and the counters of the workers. When something has made no progress,
    dstack takes a snapshot with stacks. SIGTERM ends the command with exit code 0.
    """
    require_linux()
    from dstack.watch import Terminated, WatchSettings
    from dstack.watch import watch as begin

    settings = WatchSettings(
        address=address,
        every_s=every,
        stuck_after_s=stuck_after,
        share=share / 100,
        timeout_s=timeout_s,
        profile_hz=profile_hz or (PROFILE_HZ if has_profile else None),
        **rest,
    )
    try:
        begin(settings)
    except Terminated:
        end_at_once(0)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(), metavar="[FILE]...")
@address_option
@timeout_option
def mcp(files: tuple[str, ...], address: str | None, timeout_s: float) -> None:
    """Serve read-only tools to a coding assistant.

    The server uses the Model Context Protocol on standard input and output. The tools inspect a running cluster, or
    saved snapshots. Needs the package mcp.
    """
    if files and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    if not files:
        require_linux()
    try:
        import mcp.server.mcpserver  # noqa: F401  # loaded below
    except ImportError as error:
        raise UsageError(
            "dstack mcp needs the package mcp, version 2.", "Install it: pip install 'ray-dstack[mcp]'"
        ) from error
    from dstack.cli.assistant import Snapshots, serve
    from dstack.collecting.collector import SAVED_HISTORY, Collector, Terms

    saved = [load_snapshot(file) for file in files]
    collector = None if files else Collector(address, Terms(timeout_s, history=SAVED_HISTORY))
    with Snapshots(collector, saved) as snapshots:
        serve(snapshots)
