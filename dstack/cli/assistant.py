"""The command ``mcp``: a server of read-only tools for coding assistants."""

from __future__ import annotations

import click

from dstack.cli.options import address_option, timeout_option
from dstack.errors import UsageError


@click.command()
@click.argument("files", nargs=-1, type=click.Path(), metavar="[FILE]...")
@address_option
@timeout_option
def mcp(files: tuple[str, ...], address: str | None, timeout_s: float) -> None:
    """Serve read-only tools to a coding assistant, by the Model Context Protocol on standard input and output.

    They inspect a running cluster, or saved snapshots. Needs the package mcp.
    """
    if files and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    try:
        import mcp.server.mcpserver  # noqa: F401  # loaded below
    except ImportError as error:
        raise UsageError(
            "dstack mcp needs the package mcp, version 2.", "Install it: pip install 'mcp>=2.3,<3'"
        ) from error
    from dstack.assistant.server import serve
    from dstack.assistant.snapshots import Snapshots
    from dstack.cli.inputs import load_snapshot
    from dstack.collector import SAVED_HISTORY, Collector

    saved = [load_snapshot(file) for file in files]
    collector = None if files else Collector(address, timeout_s, history=SAVED_HISTORY)
    with Snapshots(collector, saved) as snapshots:
        serve(snapshots)
