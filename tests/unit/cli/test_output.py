"""Standard output that cannot be written is one line on standard error; a reader that has closed it is no error."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dstack.files.file_output import CHECK_STDOUT
from tests.paths import RECORDED_CALLS

FILE = str(RECORDED_CALLS)
COMMANDS = [
    ["show", FILE],
    ["show", "--json", FILE],
    ["stacks", FILE],
    ["stacks", "--json", FILE],
    ["graph", FILE],
    ["graph", "--format", "json", FILE],
    ["timeline", FILE],
    ["timeline", "-o", "-", FILE],
    ["demo", "--list"],
    ["completion", "bash"],
]


def words(value: object) -> str:
    """The part of a test's name: the command without its file."""
    return " ".join(one for one in value if one != FILE) if isinstance(value, list) else f"unbuffered={value}"


def dstack(arguments: list[str], stdout: int, *, is_unbuffered: bool = False) -> subprocess.CompletedProcess[str]:
    unbuffered = {"PYTHONUNBUFFERED": "1" if is_unbuffered else ""}
    return subprocess.run(
        [sys.executable, "-m", "dstack", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | unbuffered,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "is_unbuffered"), [*((one, False) for one in COMMANDS), (COMMANDS[0], True)], ids=words
)
def test_a_full_device_is_an_error_with_a_remedy(arguments: list[str], is_unbuffered: bool) -> None:
    with open("/dev/full", "wb") as full:
        ended = dstack(arguments, full.fileno(), is_unbuffered=is_unbuffered)

    errors = [line for line in ended.stderr.splitlines() if "attempts of tasks" not in line and " chain" not in line]
    assert errors == ["Error: Cannot write to standard output: No space left on device.", CHECK_STDOUT]
    assert ended.returncode == 3


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"], ["--version"]], ids=words)
def test_help_that_cannot_be_written_is_an_error_without_a_traceback(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        ended = dstack(arguments, full.fileno())

    assert ended.stderr.splitlines()[:1] == ["Error: dstack cannot write: no space is left."]
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 3


@pytest.mark.parametrize("arguments", [["show", FILE], ["graph", FILE]], ids=words)
def test_a_closed_output_is_an_error_with_a_remedy(arguments: list[str]) -> None:
    command = 'exec "$0" -m dstack "$@" >&-'
    ended = subprocess.run(
        ["sh", "-c", command, sys.executable, *arguments], stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )

    assert ended.stderr.splitlines() == ["Error: Cannot write to standard output: it is closed.", CHECK_STDOUT]
    assert ended.returncode == 3


@pytest.mark.parametrize("arguments", [COMMANDS[0], ["timeline", "-o", "-", FILE], ["--help"]], ids=words)
def test_a_reader_that_has_closed_the_pipe_is_no_error(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = dstack(arguments, writing)
    finally:
        os.close(writing)

    assert "Error" not in ended.stderr
    assert "Traceback" not in ended.stderr
