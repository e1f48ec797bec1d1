"""The command ``cure``: what each change frees of a deadlock, and with ``--break`` the end of one of its members."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from dstack.cli import inputs
from dstack.cli.output import console_text, explained, print_text, rendered, show_progress
from dstack.errors import ClusterError, UsageError
from dstack.words import listed, plural, visible

if TYPE_CHECKING:
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.analysis.views.breaks import Break
    from dstack.model.diagnosis import Diagnosis
    from dstack.model.vertex_keys import Key

EXPLAIN_S = 30.0
SETTLE_S = 1.0
INSPECTIONS = 8
"""After a break the cluster is inspected up to so many times, each after so long, until nothing of it is stuck."""
STILL_STUCK = 1
"""The exit code if the deadlock is still there after a break."""


@click.command()
@click.argument("file", required=False, type=click.Path())
@inputs.address_option
@inputs.json_option
@inputs.job_option
@click.option(
    "--break",
    "what",
    metavar="WHAT",
    help="Cancel this task or kill this actor of a deadlock, after asking: by name or id, as the list shows.",
)
@click.option("--yes", is_flag=True, help="With --break: do not ask.")
@inputs.timeout_option
def cure(
    file: str | None,
    address: str | None,
    as_json: bool,
    job: str | None,
    what: str | None,
    yes: bool,
    timeout_s: float,
) -> None:
    """Show which changes free a deadlock, and what each frees.

    The smallest change comes first, and those that are not enough come last.
    Inspects a running cluster, or FILE. Changes nothing without --break. Exit codes of --break: 0 the deadlock is gone,
    1 it is still there, 2 usage error, 3 cluster unreachable.
    """
    if file and (address or what):
        raise UsageError("FILE cannot be combined with --address or --break.", "Leave out FILE or these options.")
    if yes and not what:
        raise UsageError("--yes needs --break.", "Add --break WHAT, or leave out --yes.")
    if what and as_json:
        raise UsageError("--break cannot be combined with --json.", "Leave out one of them.")
    analysed = explained(inputs.load_snapshot(file), job) if file else _inspected(address, job, timeout_s)
    if what:
        _break(analysed, address, job, timeout_s, what, yes)
        return
    print_text(rendered(analysed, "json") if as_json else _text(analysed))


def _inspected(address: str | None, job: str | None, timeout_s: float) -> AnalysedSnapshot:
    explain = partial(explained, job=job, within_s=EXPLAIN_S)
    return inputs.take_analysed(explain, address, inputs.terms_of(timeout_s, no_logs=True))


@show_progress("looking for changes")
def _text(analysed: AnalysedSnapshot) -> str:
    from dstack.analysis.views.breaks import breaks_of
    from dstack.report.cure_text import print_cures

    breaks = breaks_of(analysed.first_index, analysed.diagnosis)
    return console_text(lambda console: print_cures(console, analysed, breaks))


def _break(
    analysed: AnalysedSnapshot, address: str | None, job: str | None, timeout_s: float, what: str, yes: bool
) -> None:
    """Ask, end a task or an actor, and inspect the cluster again; exits with 1 if the deadlock is still there."""
    from dstack.analysis.views.breaks import breaks_of, find_break
    from dstack.report.cure_text import break_effect

    at, way = find_break(breaks_of(analysed.first_index, analysed.diagnosis), what)
    click.echo(f"This {visible(break_effect(way, analysed.diagnosis.vertices))}.", err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("--break asks before it ends anything, and there is no terminal.", "Add --yes.")
        click.confirm("Do it?", abort=True, err=True)
    _end(analysed, address, way)
    for _ in range(INSPECTIONS):
        time.sleep(SETTLE_S)
        try:
            after = _inspected(address, job, timeout_s).diagnosis
        except ClusterError as error:  # a program that has ended may take its cluster with it
            print_text(f"Done. The cluster cannot be inspected any more: {error.message}\n")
            return
        if not (stuck := _still_stuck(analysed.diagnosis, after, at)):
            break
    total = len(_waits(analysed.diagnosis, at))
    freed = f"{total - len(stuck)} of {plural(total, 'wait')}"
    print_text(f"Freed or ended: {freed}. Verdict now: {after.verdict}.\n")
    if stuck:
        from dstack.analysis.naming.descriptions import labels_of

        print_text(f"Still stuck: {visible(listed(labels_of(after.vertices[key] for key in stuck)))}.\n")
        sys.exit(STILL_STUCK)


def _waits(diagnosis: Diagnosis, at: int) -> set[Key]:
    """The waits of a finding, by its position."""
    return {*diagnosis.findings[at].members, *diagnosis.findings[at].blocked_behind}


def _still_stuck(before: Diagnosis, after: Diagnosis, at: int) -> list[Key]:
    """The waits of a finding that are stuck afterwards, too: a thread may have begun another task."""
    waits = _waits(before, at) & after.stuck
    return [key for key in waits if after.vertices[key].task_id == before.vertices[key].task_id]


@show_progress("ending it")
def _end(analysed: AnalysedSnapshot, address: str | None, way: Break) -> None:
    from dstack.probes.breaking import cancel_task, kill_actor

    address = address or analysed.snapshot.address
    if way.action == "kill":
        kill_actor(address, way.id)
    elif way.owner is not None:
        cancel_task(address, way.id, (way.owner.ip, way.owner.port))
