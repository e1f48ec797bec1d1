"""The command ``predict``: deadlocks that another order of the same calls could reach."""

from __future__ import annotations

import sys
from functools import partial

import click

from dstack.cli import inputs
from dstack.cli.output import console_text, print_text
from dstack.errors import UsageError

POSSIBLE = 1
"""The exit code with ``--error``."""


@click.command()
@click.argument("files", nargs=-1, type=click.Path())
@inputs.address_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema dstack.predict/1), a document for each file.")
@click.option("--error", "is_error", is_flag=True, help="Exit with 1 if there is a possible deadlock.")
@inputs.timeout_option
def predict(files: tuple[str, ...], address: str | None, as_json: bool, is_error: bool, timeout_s: float) -> None:
    """Show which deadlocks another order of the same calls could reach, though this run did not hang.

    Reads Ray's task events of a running cluster, or of saved snapshots, and the source of the driver's program. The
    calls of a job that has ended are included as long as Ray keeps them; its source only if it is in a FILE.
    """
    if files and address:
        raise UsageError("FILE cannot be combined with --address.", "Leave out one of them.")
    snapshots = [inputs.snapshot_with_history(file, address, timeout_s) for file in files or (None,)]
    from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
    from dstack.report.prediction_text import prediction_json, print_prediction

    is_possible = False
    for file, snapshot in zip(files or ("",), snapshots, strict=True):
        prediction = AnalysedSnapshot.of(snapshot).prediction
        is_possible = is_possible or bool(prediction.possible)
        if as_json:
            print_text(prediction_json(snapshot, prediction))
            continue
        title = f"{file}:\n" if len(files) > 1 else ""
        print_text(title + console_text(partial(print_prediction, prediction)))
    if is_possible and is_error:
        sys.exit(POSSIBLE)
