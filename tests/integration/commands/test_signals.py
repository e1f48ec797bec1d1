"""A signal ends a command at once, with one line, in every phase; a reader that does not read blocks nothing."""

import os
import pty
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from signal import SIGHUP, SIGINT, SIGTERM, Signals

import pytest

from tests.clusters.dstack_command import DSTACK
from tests.clusters.ray_clusters import own_environment
from tests.paths import RECORDED_CLUSTERS
from tests.processes import Tag, carrying, wait_until

LOADED_S = 120.0
"""A deadline that only a hang exceeds; the exit code shows that a signal ended the command, and not a timeout."""
PIPE = subprocess.PIPE
WORDS = {SIGINT: "Interrupted.\n", SIGTERM: "Terminated.\n", SIGHUP: "The terminal was closed.\n"}
RECORDED = RECORDED_CLUSTERS / "serve-deadlock-ray-2.60.json.gz"


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port that accepts and never answers, like a stopped GCS."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(LOADED_S)
        yield server


def check(server: socket.socket) -> list[str]:
    return [*DSTACK, "check", "--address", f"127.0.0.1:{server.getsockname()[1]}"]


@pytest.mark.parametrize("number", WORDS)
def test_a_signal_ends_a_command_while_the_gcs_does_not_answer(silent: socket.socket, number: Signals) -> None:
    with subprocess.Popen(check(silent), stdout=PIPE, stderr=PIPE, text=True) as process:
        silent.accept()[0].close()  # the test for a listener
        with silent.accept()[0]:  # the request
            process.send_signal(number)
            outputs = process.communicate(timeout=LOADED_S)

    assert (process.returncode, *outputs) == (128 + number, "", WORDS[number])


@pytest.mark.parametrize(
    "module",
    ["signal", "dstack.processes.signals", "click", "dstack.collecting.collector", "msgspec", "dstack.model.snapshot"],
)
def test_ctrl_c_ends_a_command_while_it_loads(silent: socket.socket, module: str) -> None:
    """The signal is sent when Python reports that this module is loaded, so while it loads the next one."""
    command = [sys.executable, "-X", "importtime", *check(silent)[1:]]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        name = next(line for line in process.stderr if line.rpartition("|")[2].strip().startswith(module))
        process.send_signal(SIGINT)
        out, err = process.communicate(timeout=LOADED_S)

    assert name
    messages = [line for line in err.splitlines() if not line.startswith("import time:")]
    is_early = module in ("signal", "dstack.processes.signals")
    assert (process.returncode, out, messages or is_early) == (130, "", ["Interrupted."] if messages else True)


def test_a_signal_ignored_at_the_start_stays_ignored(silent: socket.socket) -> None:
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *check(silent)]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        silent.accept()[0].close()
        with silent.accept()[0]:
            process.send_signal(SIGHUP)
            _, err = process.communicate(timeout=LOADED_S)

    assert process.returncode == 3
    assert "did not answer within" in err


@pytest.mark.ray
def test_a_terminated_demo_ends_its_cluster() -> None:
    with own_environment() as environment:
        tag: Tag = ("RAY_TMPDIR", environment["RAY_TMPDIR"])
        with subprocess.Popen([*DSTACK, "demo"], env=environment, stdout=PIPE, stderr=PIPE, text=True) as process:
            wait_until(lambda: len(carrying(tag)) > 4, deadline_s=LOADED_S, what=lambda: "a cluster that starts")
            process.send_signal(SIGTERM)
            _, err = process.communicate(timeout=LOADED_S)
            left = carrying(tag)

    assert (process.returncode, err.splitlines()[-1], left) == (143, "Terminated.", [])


@pytest.mark.parametrize(("command", "code"), [("show", 0), ("check", 4)])
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_reader_that_closes_the_pipe_changes_no_exit_code(command: str, code: int, option: list[str]) -> None:
    with subprocess.Popen([*DSTACK, command, str(RECORDED), *option], stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()

    assert (process.returncode, err) == (code, b"")


def test_a_slow_reader_gets_all_output_and_an_interruption_does_not_wait_for_it() -> None:
    show = [*DSTACK, "show", str(RECORDED), "--json"]
    whole = subprocess.run(show, stdout=PIPE, check=True).stdout
    with ExitStack() as stack:
        read, left = (stack.enter_context(subprocess.Popen(show, stdout=PIPE, pipesize=4096)) for _ in range(2))
        for process in (read, left):
            wait_until(partial(is_full, process), deadline_s=LOADED_S, what=lambda: "a full pipe")
        left.send_signal(SIGTERM)
        assert left.wait(timeout=LOADED_S) == 143
        assert read.stdout is not None
        assert read.stdout.read() == whole
        assert read.wait(timeout=LOADED_S) == 0


def is_full(process: subprocess.Popen[bytes]) -> bool:
    """Whether a write to the process's pipe would block."""
    assert process.stdout is not None
    writing_end = os.open(f"/proc/self/fd/{process.stdout.fileno()}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        return not select.select([], [writing_end], [], 0)[1]
    finally:
        os.close(writing_end)


PROGRESSING = """
import sys
from dstack.cli.output import show_progress
with show_progress() as progress:
    print("begun", flush=True)
    sys.stdin.readline()
    for number in range(20):
        progress(f"{number} of 20 done")
    print("ended", flush=True)
"""


def test_a_blocked_terminal_delays_no_sample() -> None:
    with (
        terminal() as (ours, theirs),
        subprocess.Popen(
            [sys.executable, "-c", PROGRESSING], stdin=PIPE, stdout=PIPE, stderr=theirs, bufsize=0
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        fill(theirs)
        process.stdin.write(b"\n")
        ready, _, _ = select.select([process.stdout], [], [], LOADED_S)
        line = process.stdout.readline() if ready else b""
        process.send_signal(SIGTERM)
        while process.poll() is None:
            if select.select([ours], [], [], 0.05)[0]:
                os.read(ours, 4096)

    assert line == b"ended\n"


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of a terminal of 20 columns."""
    ours, theirs = pty.openpty()
    try:
        subprocess.run(["stty", "cols", "20", "rows", "10"], stdin=theirs, check=True)
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


def fill(theirs: int) -> None:
    """Write to the terminal until its buffer is full."""
    own = os.open(os.ttyname(theirs), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        while True:
            os.write(own, b"x" * 4096)
    except BlockingIOError:
        pass
    finally:
        os.close(own)


def test_a_narrow_terminal_shows_the_whole_message() -> None:
    with terminal() as (ours, theirs):
        with subprocess.Popen(
            [*DSTACK, "show", "--details", str(RECORDED)], stdin=theirs, stdout=theirs, stderr=theirs
        ) as process:
            shown = b""
            while process.poll() is None or select.select([ours], [], [], 0)[0]:
                if select.select([ours], [], [], 0.05)[0]:
                    shown += os.read(ours, 65536)
        lines = shown.decode().replace("\r", "").splitlines()

    assert process.returncode == 0
    assert "RUNNING" in shown.decode()
    assert "Traceback" not in shown.decode()
    assert len(lines) > 20
