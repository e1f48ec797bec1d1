"""The ``dstack`` command. Each subcommand imports what it needs when it runs, so that help is instant."""

from __future__ import annotations

import os

import click

from dstack.cli.group import Commands
from dstack.cli.monitoring import tui, watch
from dstack.cli.snapshots import check, demo, show, snapshot
from dstack.version import __version__


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", is_flag=True, help="Show the tracebacks of errors.")
@click.version_option(__version__, prog_name="dstack")
def main(verbose: bool) -> None:
    """Explain a hung Ray application from outside: what waits for what, what is deadlocked, and how to fix it.

    Exit codes: 0 success, 2 usage error, 3 cluster or file unreadable, 128 + N ended by signal N (130 for Ctrl-C).
    `check` adds 1 and 4.
    """
    if not verbose:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # otherwise it writes to stderr about each peer that has ended


for command in (check, demo, show, snapshot, tui, watch):
    main.add_command(command)
