"""The table of layouts equals what is calibrated by each Python of this machine."""

from __future__ import annotations

import subprocess
from dataclasses import fields, replace
from typing import Any

import pytest

from dstack.probes.node.cpython.layouts import LAYOUTS
from tests.paths import ROOT
from tests.versions.calibration import TABLE, with_column
from tests.versions.interpreters import all_pythons


@pytest.mark.parametrize("python", all_pythons(), ids=lambda command: command[-1])
def test_the_table_equals_what_a_python_calibrates(python: list[str]) -> None:
    command = [*python, "-m", "tests.versions.calibration"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)

    name, *rows = done.stdout.splitlines()
    major, minor, _ = name.removeprefix("Python ").split(".")
    layout = LAYOUTS[int(major), int(minor)]
    assert rows == [f"{field.name}: {getattr(layout, field.name)!r}" for field in fields(layout)]


def test_there_is_a_layout_for_every_version_that_dstack_reads() -> None:
    assert list(LAYOUTS) == [(3, 10), (3, 11), (3, 12), (3, 13), (3, 14), (3, 15)]


def test_a_column_is_added_behind_those_of_the_table() -> None:
    newest = LAYOUTS[3, 15]
    layout = replace(newest, version=(3, 16), thread_frame=(1, 2), rlock_owner=3)
    names: dict[str, Any] = {"__name__": "dstack.probes.node.cpython.layouts"}

    exec(with_column(TABLE.read_text(), layout), names)

    assert list(map(repr, names["LAYOUTS"].values())) == list(map(repr, (*LAYOUTS.values(), layout)))
