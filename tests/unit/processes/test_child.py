"""Child processes of dstack: their imports, their ends, and their messages."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import psutil
import pytest

from dstack.errors import ClusterError
from dstack.processes.child import Child, Message, Messages, _send
from tests.paths import ROOT
from tests.processes import wait_until

START_S = 60.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Starts a child whose module has this text."""
    children: list[Child] = []

    def begin(program: str, *arguments: object) -> Child:
        (tmp_path / "program_of_a_test.py").write_text(program)
        environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        children.append(Child("program_of_a_test", *arguments, environment=environment))
        return children[-1]

    yield begin
    for child in children:
        child.close()


def messages_of(child: Child) -> list[Message]:
    """All messages of a child."""
    received: list[Message] = []
    while True:
        try:
            received.append(child.receive(time.monotonic() + START_S))
        except EOFError:
            return received


def test_files_in_the_working_directory_are_not_imported(
    start: Callable[..., Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for name in ("queue.py", "json.py", "dstack.py"):
        (folder / name).write_text("raise SystemExit('this is the job, not the standard library')\n")
    monkeypatch.chdir(folder)

    child = start("import json, queue\ndef main(parent): parent.send('done')")

    assert messages_of(child) == [Message("done")]


def test_another_python_imports_its_own_packages_first_and_dstack_from_the_first_folder(tmp_path: Path) -> None:
    """The fallback has two modules: the other Python has one of them itself, and another dstack."""
    folders = own, fallback = tmp_path / "own", tmp_path / "fallback"
    for folder in folders:
        (folder / "dstack").mkdir(parents=True)
        (folder / "dstack" / "__init__.py").write_text("raise SystemExit('another dstack')")
        (folder / "in_both.py").write_text(f"HOME = {folder.name!r}")
    (fallback / "only_here.py").write_text(
        "import in_both, dstack\ndef main(parent): parent.send(in_both.HOME, dstack.__file__)"
    )

    child = Child(
        "only_here",
        environment={**os.environ, "PYTHONPATH": str(own)},
        python=sys.executable,
        path=[str(ROOT), str(fallback)],
    )

    assert messages_of(child) == [Message("own", str(ROOT / "dstack" / "__init__.py"))]
    child.close()


def test_elsewhere_than_on_linux_there_is_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(ClusterError, match="only on Linux; this Python runs on darwin"):
        Child("program_of_a_test")


ECHO = """
def main(parent, *arguments):
    parent.send("arguments", arguments)
    for kind, value in parent:
        parent.send(kind, value)
"""


def test_arguments_and_requests_arrive_until_no_more_follow(start: Callable[..., Child]) -> None:
    child = start(ECHO, "", "é", 1.5, None)
    child.send("request", {"a": 1})
    child.finish()

    assert messages_of(child) == [Message("arguments", ("", "é", 1.5, None)), Message("request", {"a": 1})]
    assert child.how_ended() == "exited with code 0"


NOISY = """
import ctypes
import os
import sys

libc = ctypes.CDLL(None)

def print_in_every_way():
    print("by Python", flush=True)
    sys.__stdout__.write("by Python, later")
    os.write(1, b"to descriptor 1")
    os.system("echo by a child")
    libc.puts(b"by C")
    libc.fflush(None)

print_in_every_way()

def main(parent):
    for _ in range(3):
        print_in_every_way()
        parent.send("text", b"text")
"""


def test_printed_output_is_in_no_message(start: Callable[..., Child]) -> None:
    assert messages_of(start(NOISY)) == [Message("text", b"text")] * 3


@pytest.mark.parametrize("size", [0, 1, 100_000, 3 << 20])
def test_messages_of_any_size_arrive_whole(size: int, start: Callable[..., Child]) -> None:
    program = "def main(parent, size):\n    for _ in range(2): parent.send('data', b'x' * size)"

    assert [len(one.value) for one in messages_of(start(program, size))] == [size, size]


def test_an_error_arrives_with_its_class_its_remedy_and_its_place(start: Callable[..., Child]) -> None:
    program = "from dstack.errors import ClusterError\ndef main(parent): raise ClusterError('No.', 'Start one.')"

    with pytest.raises(ClusterError, match=r"^No\. Start one\.$") as caught:
        start(program).receive()
    assert "program_of_a_test.py" in str(caught.value.__cause__)


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Both ends of a pipe."""
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb", buffering=0) as reader, os.fdopen(theirs, "wb", buffering=0) as writer:
        yield reader, writer


@pytest.fixture
def sent(pipe: tuple[IO[bytes], IO[bytes]]) -> bytes:
    """What is written for one message."""
    reader, writer = pipe
    _send(writer, DATA)
    return os.read(reader.fileno(), 1 << 16)


DATA = Message("data", b"x" * 1000)


@pytest.mark.parametrize("share", [0, 1, 8, 9, 500, -1])
def test_an_incomplete_message_ends_the_stream(share: int, pipe: tuple[IO[bytes], IO[bytes]], sent: bytes) -> None:
    reader, writer = pipe
    writer.write(sent + sent[:share])
    writer.close()
    messages = Messages(reader)

    assert list(messages) == [DATA]
    with pytest.raises(EOFError):
        messages.receive()


@pytest.mark.parametrize("share", [0, 1, 8, 9, 500, -1])
def test_a_message_is_awaited_until_its_deadline_and_continued_later(
    share: int, pipe: tuple[IO[bytes], IO[bytes]], sent: bytes
) -> None:
    reader, writer = pipe
    messages = Messages(reader)
    writer.write(sent[:share])

    for _ in range(2):
        with pytest.raises(TimeoutError):
            messages.receive(time.monotonic() + 0.01)
    writer.write(sent[share:])
    assert messages.receive(time.monotonic()) == DATA


def test_an_available_message_is_received_after_the_deadline(pipe: tuple[IO[bytes], IO[bytes]]) -> None:
    reader, writer = pipe
    _send(writer, Message("late", "but there"))

    assert Messages(reader).receive(time.monotonic() - 1) == Message("late", "but there")


def test_a_killed_child_sends_nothing_more(start: Callable[..., Child]) -> None:
    child = start("import time\ndef main(parent):\n    parent.send('begun')\n    time.sleep(60)")
    assert child.receive(time.monotonic() + START_S) == Message("begun")

    child.kill()

    assert messages_of(child) == []
    assert child.how_ended() == "was ended by signal 9"


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
