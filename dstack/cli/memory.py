"""The command ``memory``: who holds which bytes of the object store."""

from __future__ import annotations

import click

from dstack.cli import inputs
from dstack.cli.output import console_text, explained, print_text
from dstack.errors import UsageError


@click.command()
@click.argument("file", required=False, type=click.Path())
@inputs.address_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema dstack.memory/1), with every listed object.")
@click.option(
    "--objects",
    "shown",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="List the N largest objects.",
)
@inputs.timeout_option
def memory(file: str | None, address: str | None, as_json: bool, shown: int, timeout_s: float) -> None:
    """Show who holds which bytes of the object store, and why.

    Inspects a running cluster, or FILE, a saved snapshot. Sums are by function and by process.
    A saved snapshot lists the 100 largest objects; the sums are of all.
    """
    if file and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    if file:
        snapshot = inputs.load_snapshot(file)
    else:
        from dstack.collecting.collector import ALL_OBJECTS, Terms

        snapshot = inputs.take_snapshot(address, Terms(timeout_s, objects=ALL_OBJECTS))
    from dstack.analysis.views.object_memory import ObjectMemory
    from dstack.report.memory_text import memory_json, print_memory

    found = ObjectMemory(explained(snapshot).last_index)
    if as_json:
        print_text(memory_json(snapshot, found))
        return
    print_text(console_text(lambda console: print_memory(console, found, shown)))
