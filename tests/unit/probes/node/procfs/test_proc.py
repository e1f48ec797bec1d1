"""The kernel's figures for processes, read from a real ``/proc``."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dstack.probes.node.procfs import proc
from tests.processes import wait_until
from tests.versions.interpreters import python_or_skip

ABSENT = 2**22 + 1
"""Larger than any pid of Linux."""


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen[bytes]]:
    """A process that reads from a pipe, with one argument, in the root directory."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "argument"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/") as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def test_a_process_has_its_name_and_parent(reader: subprocess.Popen[bytes]) -> None:
    assert reader.pid in proc.children()[os.getpid()]
    assert proc.program(reader.pid) == os.path.realpath(sys.executable)
    assert proc.working_directory(reader.pid) == "/"
    assert proc.arguments(reader.pid, 3)[-1] == "argument"
    assert proc.arguments(reader.pid, 1) == ["-c"]
    assert proc.namespace_pids(reader.pid)[0] == reader.pid
    assert proc.owner(reader.pid) == os.geteuid()
    assert proc.tracer(reader.pid) == 0


def test_a_blocked_thread_has_its_system_call(reader: subprocess.Popen[bytes]) -> None:
    def reading() -> proc.SystemCall | None:
        call = proc.system_call(reader.pid, reader.pid)
        return call if call and (call.name, call.arguments[0]) == ("read", 0) else None

    call = wait_until(reading, deadline_s=60, what=lambda: "the process to read")

    assert (call.futex, call.awaited_pid, call.is_sleep) == (None, None, False)
    assert proc.state(reader.pid) == "S"
    mark = proc.scheduler_mark(reader.pid, reader.pid)
    assert mark
    assert proc.scheduler_mark(reader.pid, reader.pid) == mark


@pytest.mark.parametrize(
    ("machine", "names"),
    [
        ("x86_64", ["futex", "poll", "wait4", ""]),
        ("aarch64", ["futex", "ppoll", "wait4", ""]),
        ("riscv64", ["", "", "", ""]),
    ],
)
def test_the_number_of_a_call_is_that_of_the_nodes_machine(
    machine: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = {"x86_64": (202, 7, 61, 39), "aarch64": (98, 73, 260, 172)}.get(machine, (98, 73, 260, 172))
    monkeypatch.setattr(proc, "machine", lambda: machine)
    monkeypatch.setattr(proc, "_read", lambda path: f"{path.split('/')[2]} 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8\n")

    calls = [proc.system_call(number, 1) for number in numbers]

    assert [call and call.name for call in calls] == names
    assert {call and call.arguments for call in calls} == {(1, 2, 3, 4, 5, 6)}


@pytest.mark.parametrize(
    ("call", "awaits"),
    [
        (proc.SystemCall("pause", (0, 0, 0, 0)), True),
        (proc.SystemCall("ppoll", (0, 0, 0, 0)), True),
        (proc.SystemCall("ppoll", (0, 0, 0x1000, 0)), False),
        (proc.SystemCall("ppoll", (0x1000, 1, 0, 0)), False),
    ],
)
def test_a_poll_of_nothing_without_end_waits_for_a_signal(call: proc.SystemCall, awaits: bool) -> None:
    assert call.awaits_signal is awaits


@pytest.mark.parametrize("version", ["3.10", "3.12"])
def test_a_sleeping_thread_has_its_system_call(version: str) -> None:
    with subprocess.Popen([*python_or_skip(version), "-c", "import time; time.sleep(600)"]) as sleeper:

        def is_asleep() -> bool:
            call = proc.system_call(sleeper.pid, sleeper.pid)
            return call is not None and call.is_sleep

        wait_until(is_asleep, deadline_s=60, what=lambda: "the process to sleep")
        sleeper.kill()


def test_the_ends_of_a_pipe_are_distinguished(reader: subprocess.Popen[bytes]) -> None:
    pipe = proc.file_at(reader.pid, 0)

    assert pipe.startswith("pipe:")
    own = next(fd for fd in proc.descriptors(os.getpid()) if proc.file_at(os.getpid(), fd) == pipe)
    assert [proc.is_open_for(os.getpid(), own, can_write=can) for can in (True, False)] == [True, False]
    assert [proc.is_open_for(reader.pid, 0, can_write=can) for can in (True, False)] == [False, True]


def test_the_mark_of_a_running_thread_changes() -> None:
    before = proc.scheduler_mark(os.getpid(), threading.get_native_id())
    wait_until(
        lambda: proc.scheduler_mark(os.getpid(), threading.get_native_id()) != before,
        deadline_s=60,
        what=lambda: "another mark",
    )


def test_own_threads_and_mappings_are_listed() -> None:
    assert threading.get_native_id() in proc.threads(os.getpid())
    found = proc.mappings(os.getpid())
    assert [one.start for one in found] == sorted(one.start for one in found)
    assert any(one.path.startswith("/") and one.file and one.offset == 0 for one in found)
    assert proc.has_mapped(os.getpid(), "python")


def test_names_with_unusual_characters_are_parsed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A process controls its name and the paths of its files."""
    program = tmp_path_factory.mktemp("odd") / "a) R 1\u2028x"
    program.symlink_to("/bin/cat")
    with subprocess.Popen([str(program)], stdin=subprocess.PIPE) as process:
        wait_until(lambda: proc.state(process.pid) == "S", deadline_s=60, what=lambda: "cat to wait")
        assert proc.name(process.pid).startswith("a) R 1")
        assert process.pid in proc.children()[os.getpid()]
        assert proc.status(process.pid)["PPid"] == str(os.getpid())


def test_an_ended_process_has_no_values() -> None:
    assert proc.state(ABSENT) == proc.name(ABSENT) == proc.program(ABSENT) == proc.file_at(ABSENT, 0) == ""
    assert proc.working_directory(ABSENT) == "/"
    assert proc.status(ABSENT) == {}
    assert not any(
        (proc.threads(ABSENT), proc.arguments(ABSENT, 3), proc.mappings(ABSENT), proc.namespace_pids(ABSENT))
    )
    found: list[object] = [proc.scheduler_mark(ABSENT, ABSENT), proc.system_call(ABSENT, ABSENT), proc.owner(ABSENT)]
    assert found == [None] * 3
    assert proc.tracer(ABSENT) == 0
    assert not proc.is_open_for(ABSENT, 0, can_write=True)
    assert not proc.has_mapped(ABSENT, "python")


def test_a_file_lock_belongs_to_the_descriptor_that_took_it_also_in_a_child(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as taken, (tmp_path / "lock").open("w") as other:
        fcntl.flock(taken, fcntl.LOCK_EX)
        with subprocess.Popen(
            [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[taken.fileno()]
        ) as child:
            descriptors = [(os.getpid(), taken), (os.getpid(), other), (child.pid, taken)]
            found = [proc.holds_lock(pid, file.fileno()) for pid, file in descriptors]
            child.communicate(b"\n")
    assert found == [True, False, True]


def test_an_armed_timer_has_the_time_until_it_fires() -> None:
    libc = ctypes.CDLL(None)
    timer = libc.timerfd_create(time.CLOCK_MONOTONIC, 0)
    try:
        unarmed = proc.timer_s(os.getpid(), timer)
        libc.timerfd_settime(timer, 0, struct.pack("=qqqq", 0, 0, 600, 0), None)
        armed = proc.timer_s(os.getpid(), timer)
    finally:
        os.close(timer)
    assert unarmed is None
    assert armed is not None
    assert 0 < armed <= 600


def test_a_thread_has_the_bytes_that_it_has_written(tmp_path: Path) -> None:
    me = os.getpid(), threading.get_native_id()
    before = proc.written_bytes(*me)
    (tmp_path / "file").write_bytes(bytes(100))
    after = proc.written_bytes(*me)

    assert before is not None
    assert after == before + 100
    assert proc.written_bytes(ABSENT, ABSENT) is None


def test_a_process_that_has_waited_for_a_child_is_known() -> None:
    code = "import subprocess, sys; sys.argv[1:] and subprocess.run(sys.argv[1:]); print(flush=True); input()"
    found = []
    for command in ([], ["true"]):
        arguments = [sys.executable, "-c", code, *command]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            found.append(proc.has_ended_children(process.pid))
            process.kill()

    assert found == [False, True]


LIMIT = 64 << 20
FILLS_GROUP = f"""
import sys
with open(sys.argv[1], "w") as procs:
    procs.write("0")
bytearray({4 * LIMIT}).replace(b"\\0", b"x")
"""


def test_kills_for_lack_of_memory_are_counted_by_cgroup() -> None:
    version_1 = Path("/sys/fs/cgroup/memory")
    limit = "memory.limit_in_bytes" if version_1.is_dir() else "memory.max"
    group = (version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")) / f"dstack-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        if not (group / limit).exists():
            pytest.skip("memory is not controlled by cgroups here")
        (group / limit).write_text(str(LIMIT))
        waits = f"{FILLS_GROUP.splitlines()[1]}; open(sys.argv[1], 'w').write('0'); input()"
        with subprocess.Popen([sys.executable, "-c", waits, str(group / "cgroup.procs")], stdin=subprocess.PIPE) as one:
            path = f"/{group.name}"
            wait_until(lambda: path in Path(f"/proc/{one.pid}/cgroup").read_text(), deadline_s=60, what=lambda: path)
            before = proc.oom_kills(one.pid)
            with subprocess.Popen([sys.executable, "-c", FILLS_GROUP, str(group / "cgroup.procs")]) as filler:
                killed = filler.wait(60)
            after = proc.oom_kills(one.pid)
            one.communicate()
    finally:
        group.rmdir()

    assert (before, killed, after) == (0, -signal.SIGKILL, 1)
    assert proc.oom_kills(ABSENT) is None


HANDLES = """
import signal, sys
for name in sys.argv[1:]:
    signal.signal(signal.Signals[name], lambda *_: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.parametrize("names", [(), ("SIGUSR2", "SIGALRM"), ("SIGTERM", "SIGINT")])
def test_a_process_has_the_signals_that_its_program_handles(names: tuple[str, ...]) -> None:
    with subprocess.Popen([sys.executable, "-c", HANDLES, *names], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = proc.handled_signals(proc.status(process.pid))
        process.kill()

    assert found == tuple(name for name in names if name in proc.PROGRAM_SIGNALS)
