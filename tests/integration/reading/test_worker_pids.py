"""A worker process is identified by its port, not by its pid alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from dstack.probes.node.target_process import NotThisWorker, PortOwners, require_worker
from tests.processes import wait_until

LISTENS = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""
IN_A_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@contextmanager
def listener(*before: str, program: str = LISTENS) -> Iterator[tuple[int, int]]:
    """A Python process and its port, started by the command ``before``."""
    command = [*before, sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        children = psutil.Process(process.pid).children()
        yield (children[0].pid if before else process.pid), port


def objection(pid: int, port: int) -> str | None:
    try:
        require_worker(pid, port, PortOwners())
    except NotThisWorker as error:
        return str(error)
    return None


def test_the_process_that_listens_on_the_port_is_the_worker() -> None:
    with listener() as (pid, port):
        assert objection(pid, port) is None
        assert objection(pid, 0) is None


def test_a_process_that_listens_on_ipv6_only_is_the_worker() -> None:
    listens = LISTENS.replace('("127.0.0.1", 0)', '("::1", 0), family=socket.AF_INET6')
    with listener(program=listens) as (pid, port), listener() as (other, _):
        assert objection(pid, port) is None
        assert objection(other, port) == (
            f"pid {other} is another process here: the worker's port belongs to pid {pid}"
        )


def test_a_forked_child_does_not_replace_the_worker() -> None:
    forks = LISTENS.replace("sys.stdin", "import os; os.fork(); sys.stdin")
    with listener(program=forks) as (pid, port):
        (child,) = wait_until(psutil.Process(pid).children, deadline_s=20, what=lambda: "a fork")
        assert [objection(one, port) for one in (pid, child.pid)] == [None, None]


def test_a_process_that_does_not_listen_is_not_the_worker() -> None:
    with listener() as (pid, port), listener() as (other, other_port):
        assert objection(pid, other_port) == (
            f"pid {pid} is another process here: the worker's port belongs to pid {other}"
        )
        assert port != other_port


def test_a_port_without_a_listener_does_not_confirm_the_pid() -> None:
    with listener() as (pid, _), listener() as (_, ended_port):
        free = ended_port ^ 1
        while free in PortOwners().pids:
            free += 1
        reason = objection(pid, free)

    assert reason == f"pid {pid} does not listen on the worker's port: it is another process, or it is ending"


@pytest.mark.hosts
@pytest.mark.usefixtures("hosts_possible")
def test_a_process_with_another_pid_in_its_container_has_both_pids() -> None:
    with listener(*IN_A_NAMESPACE) as (pid, port):
        assert objection(1, port) == f"it is pid 1 in its container and pid {pid} here"
        assert os.path.exists("/proc/1")
