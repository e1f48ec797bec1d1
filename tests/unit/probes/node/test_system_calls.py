"""Waits of real processes in system calls: what they wait for, and which processes are at the other ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dstack.observed.calls import End, KernelObjects
from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.procfs import open_files, proc
from dstack.probes.node.procfs.open_files import KernelTables
from dstack.probes.node.system_calls import KernelWaits, remaining_sleep_s
from tests.processes import wait_until

BEGIN = "import fcntl, os, select, socket, sys, time; fd = int(sys.argv[1])\n"
OWN = os.getpid()
ALIKE = {"poll": "ppoll", "select": "pselect6", "epoll_wait": "epoll_pwait", "pause": "ppoll"}
"""What the C library calls instead on some machines: those on the left do not exist on aarch64."""
Sleeping = tuple[int, proc.SystemCall]


@contextlib.contextmanager
def blocked(code: str, fd: int, call: str) -> Iterator[Sleeping]:
    """A process that runs this code with a descriptor of ours, once it sleeps in this system call or what is alike."""
    arguments = [sys.executable, "-c", BEGIN + code, str(fd)]
    with subprocess.Popen(arguments, pass_fds=[fd], stdin=subprocess.DEVNULL) as process:

        def sleeping() -> proc.SystemCall | None:
            found = proc.system_call(process.pid, process.pid)
            return found if found and kernel_name(process.pid, found) in (call, ALIKE.get(call)) else None

        try:
            yield process.pid, wait_until(sleeping, deadline_s=60, what=lambda: f"it to sleep in {call}")
        finally:
            process.kill()


def kernel_name(pid: int, call: proc.SystemCall) -> str:
    with open_memory(pid) as memory:
        found = KernelWaits(KernelTables(), memory).objects(call)
    return found.system_call if found else ""


def objects(sleeping: Sleeping, jobs: Callable[[int], list[int]] = lambda pid: [OWN, pid]) -> KernelObjects:
    """What it waits for, with these processes as those of the jobs."""
    pid, call = sleeping
    with open_memory(pid) as memory:
        found = KernelWaits(KernelTables(lambda: jobs(pid)), memory).objects(call)
    assert found is not None
    return found


def timeout_of(sleeping: Sleeping) -> float | None:
    pid, call = sleeping
    with open_memory(pid) as memory:
        return KernelWaits(KernelTables(), memory).timeout_s(call)


def only(found: KernelObjects) -> End:
    (end,) = found.ends
    return end


def holders_of(end: End) -> list[int]:
    return [holder.pid for holder in end.holders]


# Pipes


def test_a_reader_of_a_pipe_depends_on_its_writers() -> None:
    read, write = os.pipe()
    with blocked("os.read(fd, 1)", read, "read") as sleeping:
        end = only(objects(sleeping))
        assert (end.what, end.is_write, holders_of(end)) == ("pipe", False, [OWN])
        assert timeout_of(sleeping) is None
        os.close(write)
    os.close(read)


def test_a_writer_to_a_full_pipe_depends_on_its_readers() -> None:
    read, write = os.pipe()
    with blocked("os.write(fd, bytes(1 << 20))", write, "write") as sleeping:
        end = only(objects(sleeping))
        assert (end.what, end.is_write, holders_of(end)) == ("pipe", True, [OWN])
    os.close(read)
    os.close(write)


def test_a_process_of_no_job_is_named_where_it_alone_has_the_other_end() -> None:
    read, write = os.pipe()
    with blocked("os.read(fd, 1)", read, "read") as sleeping:
        end = only(objects(sleeping, lambda pid: [pid]))
        assert [(one.pid, bool(one.name)) for one in end.holders] == [(OWN, True)]
        os.close(write)
    os.close(read)


def test_the_cpu_time_of_a_process_of_no_job_is_counted() -> None:
    read, write = os.pipe()
    with blocked("os.read(fd, 1)", read, "read") as sleeping:
        before, after = (only(objects(sleeping, lambda pid: [pid])).holders[0].cpu_s for _ in range(2))
        os.close(write)
    os.close(read)

    assert 0 < before < after


def test_a_child_whose_end_is_awaited_is_the_other_end() -> None:
    code = "child = os.fork() or signal.pause()\nos.waitid(os.P_PID, child, os.WEXITED)"
    with blocked(f"import signal\n{code}", 0, "waitid") as sleeping:
        end = only(objects(sleeping))
        (child,) = proc.children()[sleeping[0]]
        assert (end.what, holders_of(end)) == ("process", [child])
        os.kill(child, signal.SIGKILL)


def test_a_wait_for_dstack_is_none() -> None:
    read, write = os.pipe()
    with blocked("os.read(fd, 1)", read, "read") as (pid, call):
        code = "import os, sys; print(flush=True); os.read(0, 1); run_child('dstack.no_module')"
        with subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[write], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as own:
            assert own.stdout
            own.stdout.readline()
            os.close(write)
            with open_memory(pid) as memory:
                assert KernelWaits(KernelTables(lambda: [pid]), memory).objects(call) is None
            own.kill()
    os.close(read)


# Sockets


def test_a_tcp_connection_leads_to_the_process_at_its_other_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs, blocked("socket.socket(fileno=fd).recv(1)", theirs.fileno(), "recvfrom") as sleeping:
            address = "{}:{}".format(*ours.getsockname())
            end = only(objects(sleeping))
            assert (end.what, end.name, end.state, end.unread) == ("TCP", address, "connected", 0)
            assert OWN in holders_of(end)
            assert timeout_of(sleeping) is None


def test_a_timeout_that_only_the_kernel_has_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, (600).to_bytes(8, "little") + bytes(8))
        with blocked("socket.socket(fileno=fd).accept()", server.fileno(), "accept4") as sleeping:
            end = only(objects(sleeping))
            assert (end.state, end.name) == ("listening", "{}:{}".format(*server.getsockname()))
            assert timeout_of(sleeping) == 600.0


def test_unix_sockets_lead_to_their_peer() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, blocked("socket.socket(fileno=fd).recv(1)", theirs.fileno(), "recvfrom") as sleeping:
        end = only(objects(sleeping))
        assert (end.what, end.state) == ("Unix socket", "connected")
        assert OWN in holders_of(end)


def test_a_host_listens_or_refuses() -> None:
    tables = KernelTables(lambda: [OWN])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not tables.is_refused(OWN, f"127.0.0.1:{port}")
    assert KernelTables().is_refused(OWN, f"127.0.0.1:{port}")
    assert not KernelTables().is_refused(OWN, f"203.0.113.9:{port}"), "an address of another host"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100007F:0050", "127.0.0.1:80"),
        ("00000000000000000000000001000000:1F90", "[::1]:8080"),
        ("0000000000000000FFFF00000100007F:0016", "127.0.0.1:22"),
    ],
)
def test_addresses_are_decoded(text: str, address: str) -> None:
    assert open_files.address(text) == address


# Several descriptors, and timeouts


@pytest.mark.parametrize(
    ("code", "call", "timeout_s"),
    [
        ("p = select.poll(); p.register(fd, select.POLLIN); p.poll()", "poll", None),
        ("p = select.poll(); p.register(fd, select.POLLIN); p.poll(600_000)", "poll", 600.0),
        ("select.select([fd], [], [], 600)", "select", 600.0),
        ("e = select.epoll(); e.register(fd, select.EPOLLIN); e.poll()", "epoll_wait", None),
        ("e = select.epoll(); e.register(fd, select.EPOLLIN); e.poll(600)", "epoll_wait", 600.0),
    ],
)
def test_each_descriptor_of_a_set_is_followed(code: str, call: str, timeout_s: float | None) -> None:
    read, write = os.pipe()
    with blocked(code, read, call) as sleeping:
        end = only(objects(sleeping))
        assert (end.what, holders_of(end)) == ("pipe", [OWN])
        assert timeout_of(sleeping) == (pytest.approx(timeout_s, abs=1.0) if timeout_s else None)
        os.close(write)
    os.close(read)


def test_the_rest_of_a_sleep_is_read() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as sleeper:

        def asleep() -> proc.SystemCall | None:
            call = proc.system_call(sleeper.pid, sleeper.pid)
            return call if call and call.is_sleep else None

        call = wait_until(asleep, deadline_s=60, what=lambda: "it to sleep")
        with open_memory(sleeper.pid) as memory:
            left = remaining_sleep_s(call, memory)
        sleeper.kill()
    assert left is not None
    assert 500 < left <= 600


# Locks, children, and everything else


def test_a_file_lock_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "cache.lock"
    with path.open("w") as file, path.open("w") as other:
        fcntl.flock(file, fcntl.LOCK_EX)
        with blocked("fcntl.flock(fd, fcntl.LOCK_EX)", other.fileno(), "flock") as sleeping:
            end = only(objects(sleeping))
            assert (end.what, end.name, holders_of(end)) == ("file lock", str(path), [OWN])


def test_a_lock_file_is_found_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "build_lock"
    with open_memory(OWN) as memory:
        waits = KernelWaits(KernelTables(lambda: [OWN]), memory)
        assert waits.lock_file(str(path)) is None, "there is no such file"
        path.touch()
        assert waits.lock_file(str(path)) == End(what="file lock", name=str(path), identity=str(path))
        assert waits.lock_file("/dev/null") is None
        assert waits.lock_file("relative.lock") is None


def test_a_terminal_and_a_signal_are_no_processes() -> None:
    ours, theirs = os.openpty()
    with blocked("os.read(fd, 1)", theirs, "read") as sleeping:
        assert only(objects(sleeping)).what == "terminal"
    with blocked("import signal; signal.pause()", ours, "pause") as sleeping:
        assert only(objects(sleeping)).what == "signal"
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("code", "expected"),
    [("raise SystemExit(3)", 3), ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)
def test_a_process_that_has_died_has_its_exit_code(code: str, expected: int) -> None:
    child = subprocess.Popen([sys.executable, "-c", code])
    assert wait_until(lambda: proc.exit_code(child.pid), deadline_s=60, what=lambda: "it to end") == expected
    child.wait()
    assert proc.exit_code(OWN) is None


def test_an_eventfd_is_signalled_by_a_thread() -> None:
    eventfd = os.eventfd(0)
    with blocked("os.read(fd, 8)", eventfd, "read") as sleeping:
        found = objects(sleeping)
        assert (only(found).what, found.is_by_thread) == ("eventfd", True)
    os.close(eventfd)


def test_bytes_on_their_way_are_counted() -> None:
    """A thread that polls for something else leaves them unread."""
    ours, theirs = socket.socketpair()
    code = "p = select.poll(); p.register(fd, select.POLLHUP); p.poll()"
    with ours, theirs, blocked(code, theirs.fileno(), "poll") as sleeping:
        ours.send(b"12345")
        assert only(objects(sleeping)).unread >= 5 or not open_files.unix_sockets(), "where the kernel lists the queues"
