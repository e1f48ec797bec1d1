"""Child processes of dstack: their imports, their ends, and their messages."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from dstack.processes.child import Message, Messages, send, start_child
from tests.paths import ROOT
from tests.processes import wait_until


def messages_of(tmp_path: Path, program: str, *arguments: str) -> list[Message]:
    """All messages of a child whose module has this text."""
    (tmp_path / "program_of_a_test.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    with start_child("program_of_a_test", *arguments, environment=environment) as child:
        assert child.stdout is not None
        return list(Messages(child.stdout))


def test_files_in_the_working_directory_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for name in ("queue.py", "json.py", "dstack.py"):
        (folder / name).write_text("raise SystemExit('this is the job, not the standard library')\n")
    monkeypatch.chdir(folder)

    imports = "import json, queue\nfrom dstack.processes.child import send\n"
    program = f"{imports}def main(messages, arguments): send(messages, 'done')"

    assert messages_of(tmp_path, program) == [Message("done", bytearray(b""))]


ECHO = """
from dstack.processes.child import send

def main(messages, arguments):
    for argument in arguments:
        send(messages, "argument", argument.encode())
"""


def test_arguments_arrive(tmp_path: Path) -> None:
    assert [one.payload for one in messages_of(tmp_path, ECHO, "", "--a b", "é")] == [b"", b"--a b", "é".encode()]


NOISY = """
import ctypes
import os
import sys
from dstack.processes.child import send

libc = ctypes.CDLL(None)

def print_in_every_way():
    print("by Python", flush=True)
    sys.__stdout__.write("by Python, later")
    os.write(1, b"to descriptor 1")
    os.system("echo by a child")
    libc.puts(b"by C")
    libc.fflush(None)

print_in_every_way()

def main(messages, arguments):
    for _ in range(3):
        print_in_every_way()
        send(messages, "payload", b"payload 5\\n" * 2)
"""


def test_printed_output_is_in_no_message(tmp_path: Path) -> None:
    assert messages_of(tmp_path, NOISY) == [Message("payload", bytearray(b"payload 5\n" * 2))] * 3


@pytest.mark.parametrize("size", [0, 1, 100_000, 3 << 20])
def test_messages_of_any_size_arrive_whole(tmp_path: Path, size: int) -> None:
    program = (
        "from dstack.processes.child import send\n"
        f"def main(messages, arguments):\n    for _ in range(2): send(messages, 'data', b'x' * {size})"
    )

    assert [len(one.payload) for one in messages_of(tmp_path, program)] == [size, size]


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Both ends of a pipe."""
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb", buffering=0) as reader, os.fdopen(theirs, "wb", buffering=0) as writer:
        yield reader, writer


@pytest.mark.parametrize(
    "data",
    [b"", b"data", b"data 5\n1234", b"data five\n12345", b"data -1\n", b"x" * 1000, b"\n", b"DATA 1\n1"],
)
def test_an_incomplete_message_ends_the_stream(data: bytes, pipe: tuple[IO[bytes], IO[bytes]]) -> None:
    reader, writer = pipe
    writer.write(b"first 1\n1" + data)
    writer.close()
    messages = Messages(reader)

    assert list(messages) == [Message("first", bytearray(b"1"))]
    with pytest.raises(EOFError):
        messages.receive()


@pytest.mark.parametrize("data", [b"", b"da", b"data 5\n1234"])
def test_a_message_is_awaited_until_its_deadline(data: bytes, pipe: tuple[IO[bytes], IO[bytes]]) -> None:
    reader, writer = pipe
    writer.write(data)

    with pytest.raises(TimeoutError):
        Messages(reader).receive(time.monotonic() + 0.01)


def test_an_available_message_is_received_after_the_deadline(pipe: tuple[IO[bytes], IO[bytes]]) -> None:
    reader, writer = pipe
    send(writer, "late", b"but there")

    assert Messages(reader).receive(time.monotonic() - 1) == Message("late", bytearray(b"but there"))


MORTAL = """
import time
from dstack.processes.child import die_with
die_with({parent})
print("alive", flush=True)
time.sleep(60)
"""
STARTS_ONE = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {program!r}.format(parent=os.getpid())], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


def test_a_child_is_killed_with_its_parent() -> None:
    command = [sys.executable, "-c", STARTS_ONE.format(program=MORTAL)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline().strip() for _ in range(2)}
        child = psutil.Process(int((lines - {"alive"}).pop()))
        parent.kill()
        wait_until(lambda: not child.is_running(), deadline_s=20, what=lambda: f"end of {child}")


def test_a_child_whose_parent_has_ended_does_not_begin() -> None:
    program = MORTAL.format(parent=1)

    done = subprocess.run([sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, check=False)

    assert (done.returncode, done.stdout) == (1, b"")
