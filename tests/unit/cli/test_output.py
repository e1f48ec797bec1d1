"""Standard output that cannot be written is one line on standard error; a reader that has closed it is no error."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from functools import partial

import pytest

from dstack.files.file_output import CHECK_STDOUT
from tests.paths import RECORDED_CALLS
from tests.processes import wait_until

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


PROGRESS = """
import sys
from dstack.cli.output import show_progress
with show_progress("reading") as show, show_progress("explaining"):
    sys.stdin.readline()
    show("a step longer than the terminal is wide")
    sys.stdin.readline()
"""


def test_progress_is_a_line_on_a_terminal_that_is_erased_at_the_end() -> None:
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    subprocess.run(["stty", "cols", "20", "rows", "10"], stdin=theirs, check=True)
    shown = b""

    def has(text: bytes) -> bool:
        nonlocal shown
        while select.select([ours], [], [], 0)[0]:
            shown += os.read(ours, 4096)
        return text in shown

    with subprocess.Popen([sys.executable, "-c", PROGRESS], stdin=subprocess.PIPE, stderr=theirs) as process:
        assert process.stdin is not None
        for text in (b"explaining\x1b[K", b"a step longer tha\x1b[K"):
            wait_until(partial(has, text), deadline_s=60, what=lambda: str(shown))
            process.stdin.write(b"\n")
            process.stdin.flush()
    assert has(b"\r\x1b[K")
    os.close(theirs)
    os.close(ours)

    assert shown.endswith(b"\r\x1b[K")
    assert b"reading" not in shown
    assert b"\n" not in shown
