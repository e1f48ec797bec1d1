"""The commands that take and explain one snapshot: ``snapshot``, ``check``, ``show`` and ``doctor``."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from dstack.cli import inputs
from dstack.cli.output import (
    Form,
    console_text,
    explained,
    print_analysed,
    print_snapshot,
    print_text,
    rendered,
    show_progress,
)
from dstack.errors import UsageError, require_linux
from dstack.processes.signals import CleanUp
from dstack.words import capitalised, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dstack.model.diagnosis import Check, FailOn

STUCK, INCONCLUSIVE = 1, 4
"""Exit codes of ``check``."""
EXPLAIN_S = 30.0
"""The time limit for explaining a snapshot, beyond ``--timeout``."""
LIMITED = 1
"""The exit code if something limits what dstack reads."""


@click.command()
@inputs.address_option
@click.option("-o", "--output", metavar="FILE", help="Save the snapshot: .json, .json.gz, or - for standard output.")
@inputs.force_option
@inputs.json_option
@inputs.details_option
@inputs.job_option
@inputs.native_option
@click.option("--locals", "with_locals", is_flag=True, help="Include the values of local variables.")
@inputs.pause_option
@inputs.no_logs_option
@inputs.for_option
@click.option(
    "--history/--no-history",
    default=None,
    help="Include the history of tasks that Ray keeps, for timeline and graph. [default: with -o, of 20,000 tasks]",
)
@inputs.timeout_option
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
    no_logs: bool,
    watch_s: float | None,
    history: bool | None,
    timeout_s: float,
) -> None:
    """Take a snapshot of a running cluster and explain it."""
    form = _form(as_json, details)
    if output:
        from dstack.files.snapshot_file import require_writable

        require_writable(output, force=force)
    from dstack.collecting.collector import SAVED_HISTORY, WHOLE_HISTORY, Terms
    from dstack.observed.reading_options import ReadingOptions

    kept = WHOLE_HISTORY if history else SAVED_HISTORY if output and history is None else 0
    options = ReadingOptions(native=native, locals=with_locals, pause=pause, logs=inputs.logs_to_read(no_logs))
    taken = inputs.take_snapshot(address, Terms(timeout_s, options, watch_s, kept))
    try:
        if output:
            from dstack.files.snapshot_file import save

            with CleanUp():
                save(taken, output, force=force)
    finally:  # print the report even if the file cannot be written
        if output != "-":
            print_snapshot(taken, form, job, within_s=EXPLAIN_S)
    if output and output != "-":
        click.echo(f"Saved. Show it again with: dstack show {visible(output)}", err=True)


@click.command()
@click.argument("file", required=False, type=click.Path())
@inputs.address_option
@inputs.json_option
@inputs.details_option
@inputs.job_option
@inputs.native_option
@inputs.pause_option
@inputs.no_logs_option
@inputs.for_option
@click.option(
    "--fail-on",
    type=click.Choice(["deadlock", "stalled", "starved"]),
    default="deadlock",
    show_default=True,
    help="Exit with 1 on this or worse: deadlock (includes hang and suspected deadlock), stalled, starved.",
)
@click.option("--wait", is_flag=True, help="Follow the job of --job until it has ended or is stuck.")
@inputs.nodes_settle_option
@inputs.seconds_option("--every", default=10.0, help="With --wait: pause between polls, which read no stacks.")
@inputs.seconds_option(
    "--stuck-after", default=60.0, help="With --wait: inspect the job when something made no progress for this long."
)
@inputs.timeout_option
def check(
    file: str | None,
    address: str | None,
    as_json: bool,
    details: bool,
    job: str | None,
    native: bool,
    pause: bool,
    no_logs: bool,
    watch_s: float | None,
    fail_on: FailOn,
    nodes_settle_s: float,
    wait: bool,
    every: float,
    stuck_after: float,
    timeout_s: float,
) -> None:
    """Find deadlocks and hangs; exit with 1 if there is one.

    Inspects a running cluster, or FILE, a saved snapshot.

    Exit codes: 0 none found, 1 deadlock or hang (see --fail-on), 2 usage error, 3 cluster or file unreadable,
    4 inconclusive: too little could be read; the report says what, and why.
    """
    form = _form(as_json, details)
    if file and (address or native or pause or watch_s is not None):
        raise UsageError(
            "FILE cannot be combined with --address, --native, --pause or --for.", "Leave out FILE or these options."
        )
    if wait:
        if file or not job or native or pause or watch_s is not None:
            raise UsageError(
                "--wait needs --job, and cannot be combined with FILE, --native, --pause or --for.", "Add --job ID."
            )
        _follow(
            address,
            job,
            fail_on,
            form,
            timeout_s,
            every_s=every,
            stuck_after_s=stuck_after,
            nodes_settle_s=nodes_settle_s,
        )
        return
    if file:
        diagnosis = print_snapshot(inputs.load_snapshot(file), form, job, nodes_settle_s=nodes_settle_s)
    else:
        from dstack.collecting.collector import Terms
        from dstack.observed.reading_options import ReadingOptions

        explain = partial(explained, job=job, within_s=EXPLAIN_S, nodes_settle_s=nodes_settle_s)
        terms = Terms(timeout_s, ReadingOptions(native=native, pause=pause, logs=inputs.logs_to_read(no_logs)), watch_s)
        diagnosis = print_analysed(inputs.take_analysed(explain, address, terms), form, within_s=EXPLAIN_S)
    if diagnosis.fails(fail_on):
        sys.exit(STUCK)
    if diagnosis.incomplete:
        sys.exit(INCONCLUSIVE)


@click.command()
@click.argument("file", type=click.Path())
@inputs.json_option
@inputs.details_option
@inputs.job_option
def show(file: str, as_json: bool, details: bool, job: str | None) -> None:
    """Explain a saved snapshot, without a cluster."""
    form = _form(as_json, details)
    print_snapshot(inputs.load_snapshot(file), form, job)


def _follow(
    address: str | None,
    job: str,
    fail_on: FailOn,
    form: Form,
    timeout_s: float,
    *,
    every_s: float,
    stuck_after_s: float,
    nodes_settle_s: float,
) -> None:
    """Returns when the job has ended; exits with 1 and a report when it is stuck."""
    from dstack.collecting.collector import Collector, Terms
    from dstack.watch.job_follower import JobFollower

    with show_progress() as progress, Collector(address, Terms(timeout_s)) as collector:
        follower = JobFollower(
            collector,
            job,
            fail_on,
            every_s=every_s,
            stuck_after_s=stuck_after_s,
            nodes_settle_s=nodes_settle_s,
            say=progress,
        )
        stuck = follower.run()
    if stuck is not None:
        print_text(rendered(stuck, form))
        sys.exit(STUCK)
    click.echo(f"The job {visible(job)} has ended.", err=True)


def _form(as_json: bool, details: bool) -> Form:
    if as_json and details:
        raise UsageError("--details cannot be combined with --json, which has all data.", "Leave out one of them.")
    return "json" if as_json else "details" if details else "report"


@click.command()
@inputs.address_option
@inputs.timeout_option
@click.option("--pieces", is_flag=True, help="List each piece of Ray that dstack reads, and what it feeds.")
def doctor(address: str | None, timeout_s: float, pieces: bool) -> None:
    """Show what dstack can read here, and what limits it.

    Checks this machine and the cluster: permissions, versions, py-spy, and the probe of each node.

    Exit codes: 0 nothing limits dstack, 1 something does, 3 the cluster is unreachable.
    """
    require_linux()
    from dstack.collecting.collector import Terms
    from dstack.probes.this_host import host_checks, piece_checks

    with show_progress("checking this machine"):
        checks, of_pieces = host_checks(), piece_checks() if pieces else []
    _print_checks("This machine", checks)
    if of_pieces:
        _print_checks("What dstack knows by which piece of Ray", of_pieces)
    snapshot = inputs.take_snapshot(address, Terms(timeout_s))
    from dstack.analysis.naming import names
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.probes.connection.cluster_ray import beside_checks
    from dstack.report.not_observed import cluster_checks, conclusion, node_checks

    analysed = AnalysedSnapshot.of(snapshot)
    has_other_nodes = sum(node.alive for node in snapshot.nodes) > 1
    of_cluster = cluster_checks(analysed) + beside_checks(snapshot.ray_version, has_other_nodes=has_other_nodes)
    _print_checks(f"The cluster at {snapshot.address}", of_cluster)
    found: list[Check] = [*checks, *of_cluster]
    titles = names.nodes(node for node in snapshot.nodes if node.alive)
    for node, of_node in node_checks(analysed):
        head = ", head" if node.is_head else ""
        _print_checks(f"{capitalised(titles[node.node_id])}{head}", of_node)
        found += of_node
    print_text(f"{conclusion(analysed, found)}\n")
    if any(check.level != "ok" for check in found):
        sys.exit(LIMITED)


def _print_checks(title: str, checks: Sequence[Check]) -> None:
    from dstack.report.summaries import print_checks

    print_text(console_text(lambda console: print_checks(console, title, checks)))
