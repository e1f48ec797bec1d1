"""Runs the ``dstack`` command on a host, and finds what it might leave on any of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

from tests.clusters.dstack_command import DSTACK, Json, Result, elapsed_s
from tests.hosts.hosts import Hosts
from tests.hosts.namespaces import KEPT
from tests.paths import ROOT
from tests.processes import Child, carrying, command_line, wait_until

OURS = re.compile(r"ray::NodeProbe|dstack\.(?:probes|collector)|-m dstack|py-spy|dump --json")
PYTHONPATH = str(ROOT)


def dstack(hosts: Hosts, on: int, *arguments: str) -> Result:
    """One run of the command on a host, to its end."""
    return hosts.exec(on, [*DSTACK, *arguments], PYTHONPATH=PYTHONPATH)


def check(hosts: Hosts, on: int = 1, *, address: str | None = None, options: Sequence[str] = ()) -> Json:
    """The JSON of ``dstack check`` on a host, with its ``exit_code`` and how long it ``took_s``."""
    arguments = ["check", "--address", address or hosts.address, "--json", *options]
    done, took_s = elapsed_s(lambda: dstack(hosts, on, *arguments))
    assert done.stdout, done.stderr
    assert not done.stderr
    return {**json.loads(done.stdout), "exit_code": done.returncode, "took_s": took_s}


@contextmanager
def running(hosts: Hosts, on: int, *arguments: str) -> Iterator[tuple[Child, psutil.Process]]:
    """The command on a host, meanwhile: through which it was started, and its own process, both seen from outside."""
    with hosts.start(on, [*DSTACK, *arguments], PYTHONPATH=PYTHONPATH) as child:
        starter = psutil.Process(child.pid)
        (process,) = wait_until(starter.children, deadline_s=20, what=lambda: f"a process of {child}")
        yield child, process


def ours(hosts: Hosts) -> list[str]:
    """The command lines of all processes on any host that are dstack's or were started by it."""
    lines = (" ".join(command_line(process)) for process in carrying(hosts.tag))
    return [line for line in lines if OURS.search(line)]


def files(hosts: Hosts) -> dict[int, set[str]]:
    """By host, all temporary files that are its own; of those that Ray keeps there only what bears our names.

    Left out are pip's, which installs on after the job that asked for a runtime environment has ended.
    """
    own = [word for path in KEPT for word in ("-not", "-path", f"{path}/*")]
    ours = ["(", "-not", "-path", "/tmp/ray/*", "-o", "-name", "*dstack*", "-o", "-name", "*py-spy*", ")"]
    find = ["find", "/tmp", "/dev/shm", *own, "-not", "-path", "/tmp/pip-*", *ours]
    return {host: set(hosts.exec(host, find).stdout.split()) for host in hosts.nodes}
