"""What dstack has left behind: processes and files on the hosts, and actors and jobs in the cluster."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.hosts import Hosts
from tests.hosts.command import dstack_processes, files

DEADLINE_S = 90.0
"""dstack's probes end by themselves when they were not used for a minute."""
LIST = Path(__file__).with_name("list_own.py")
NAMES = ("dstack", "py-spy")


def leftovers(hosts: Hosts) -> list[str]:
    """What is still there at the deadline, as soon as nothing is an empty list."""
    deadline = time.monotonic() + DEADLINE_S
    while (left := _now(hosts)) and time.monotonic() < deadline:
        time.sleep(2)
    return left


def _now(hosts: Hosts) -> list[str]:
    processes = [f"process: {line}" for line in dstack_processes(hosts)]
    named = (
        f"file on host {host}: {path}"
        for host, paths in files(hosts).items()
        for path in sorted(paths)
        if any(name in Path(path).name for name in NAMES)
    )
    return [*processes, *named, *_in_cluster(hosts)]


def _in_cluster(hosts: Hosts) -> list[str]:
    """Live actors and jobs of dstack, by the GCS."""
    done = hosts.exec(1, [sys.executable, str(LIST), hosts.address], RAY_AUTH_MODE="token")
    if done.returncode != 0:
        return [f"the GCS does not list actors and jobs: {done.stderr.strip()[-300:]}"]
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found
