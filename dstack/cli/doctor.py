"""The command ``doctor``: what this machine and a cluster allow dstack to read, and what to do about each limit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dstack.cli.inputs import address_option, take_snapshot, timeout_option

if TYPE_CHECKING:
    from dstack.checks import Check

LIMITED = 1
"""The exit code if something limits what dstack reads."""


@click.command()
@address_option
@timeout_option
def doctor(address: str | None, timeout_s: float) -> None:
    """Show what this machine and the cluster allow: permissions, versions, py-spy, and the probe of each node.

    Exit codes: 0 nothing limits dstack, 1 something does, 3 the cluster is unreachable.
    """
    from rich.console import Console

    from dstack.probes.this_host import host_checks
    from dstack.report.summaries import print_checks

    console = Console(highlight=False)
    checks = host_checks()
    print_checks(console, "This machine", checks)
    snapshot = take_snapshot(address, timeout_s)
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.analysis.views.capabilities import cluster_checks, node_checks

    analysed = AnalysedSnapshot.of(snapshot)
    of_cluster = cluster_checks(analysed)
    print_checks(console, f"The cluster at {snapshot.address}", of_cluster)
    found: list[Check] = [*checks, *of_cluster]
    for node, of_node in node_checks(analysed):
        head = ", head" if node.is_head else ""
        print_checks(console, f"Node {node.ip}{head}", of_node)
        found += of_node
    if any(check.level != "ok" for check in found):
        sys.exit(LIMITED)
