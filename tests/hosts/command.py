"""Run the ``dstack`` command on a host, and find its remaining processes and files on all hosts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

from tests.clusters.dstack_command import DSTACK, Json, Result, elapsed_s
from tests.hosts.hosts import Hosts
from tests.hosts.namespaces import KEPT, Host
from tests.paths import ROOT
from tests.processes import Child, carrying, command_line, wait_until

DSTACK_PROCESS = re.compile(r"ray::ProbeActor|dstack\.(?:probes|collector|recorder)|-m dstack|py-spy|dump --json")
PYTHONPATH = str(ROOT)


def dstack(hosts: Hosts, on: int | Host, *arguments: str, timeout_s: float = 120.0) -> Result:
    """Run the command on a host to its end."""
    return hosts.exec(on, [*DSTACK, *arguments], timeout_s=timeout_s, PYTHONPATH=PYTHONPATH)


def check(hosts: Hosts, on: int | Host = 1, *, address: str | None = None, options: Sequence[str] = ()) -> Json:
    """The document of ``dstack check --json`` on a host, with its ``exit_code`` and its duration ``took_s``."""
    arguments = ["check", "--address", address or hosts.address, "--json", *options]
    done, took_s = elapsed_s(lambda: dstack(hosts, on, *arguments))
    assert done.stdout, done.stderr
    assert not done.stderr
    return {**json.loads(done.stdout), "exit_code": done.returncode, "took_s": took_s}


@contextmanager
def running(hosts: Hosts, on: int, *arguments: str) -> Iterator[tuple[Child, psutil.Process]]:
    """A running command on a host: the child that started it, and its own process."""
    with hosts.start(on, [*DSTACK, *arguments], PYTHONPATH=PYTHONPATH) as child:
        starter = psutil.Process(child.pid)
        (process,) = wait_until(starter.children, deadline_s=20, what=lambda: f"a process of {child}")
        yield child, process


def dstack_processes(hosts: Hosts) -> list[str]:
    """The command lines of dstack's processes and their children on all hosts."""
    lines = (" ".join(command_line(process)) for process in carrying(hosts.tag))
    return [line for line in lines if DSTACK_PROCESS.search(line)]


def files(hosts: Hosts) -> dict[int, set[str]]:
    """The temporary files of each host; of Ray's files only those with the name of dstack or py-spy.

    pip's are left out, because it continues to install after the job with the runtime environment has ended.
    """
    own = [word for path in [*KEPT, hosts.shared] for word in ("-not", "-path", f"{path}/*")]
    wanted = ["(", "-not", "-path", "/tmp/ray/*", "-o", "-name", "*dstack*", "-o", "-name", "*py-spy*", ")"]
    find = ["find", "/tmp", "/dev/shm", *own, "-not", "-path", "/tmp/pip-*", *wanted]
    return {host: set(hosts.exec(host, find).stdout.split()) for host in hosts.nodes}
