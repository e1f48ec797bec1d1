"""The recorded snapshots of the examples: ``tests/recorded/hangs/mutual_get.json.gz`` is of ``hangs/mutual_get``.

``python -m tests.examples.record`` records them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.cli import examples
from dstack.files.snapshot_file import load
from dstack.report.check_json import check_json
from dstack.report.text import print_report, report_text
from tests.clusters.dstack_command import Json
from tests.paths import ROOT

RECORDED = ROOT / "tests" / "recorded"
NAMES = sorted(examples.files())
"""All examples, as ``dstack demo`` names them."""


def recorded(name: str) -> Path:
    """The file with the snapshot of an example."""
    return RECORDED / f"{name}.json.gz"


def report_of(name: str) -> str:
    """The report on the snapshot of an example, as ``dstack show`` prints it where the time zone is UTC."""
    with _utc():
        return report_text(_analysed(recorded(name)))


def print_report_of(console: Console, name: str) -> None:
    """Print the same in the colours of a console."""
    with _utc():
        print_report(console, _analysed(recorded(name)))


@contextmanager
def _utc() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        del os.environ["TZ"]
        os.environ.update({} if before is None else {"TZ": before})
        time.tzset()


def document_of(path: Path) -> Json:
    """What ``dstack check --json`` prints for a snapshot file."""
    document: Json = json.loads(check_json(_analysed(path)))
    return document


def document_with_report(analysed: AnalysedSnapshot) -> Json:
    """The same, and the text report as ``report``: what :class:`tests.examples.expected.Expected` is compared with."""
    return {**json.loads(check_json(analysed)), "report": report_text(analysed)}


def _analysed(path: Path) -> AnalysedSnapshot:
    return AnalysedSnapshot.of(load(path))
