"""Deadlocks over several hosts: ``drivers/ring.py`` run on one of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.clusters.ray_clusters import busy_workers, no_worker_left
from tests.hosts.hosts import Hosts
from tests.processes import command_line, wait_until

DRIVER = Path(__file__).with_name("drivers") / "ring.py"


@contextmanager
def ring(
    hosts: Hosts, members: Sequence[int], *, driver: int = 1, idle: int | None = None, queued: int = 0
) -> Iterator[None]:
    """A ring with a member on each of the hosts ``members``; yields when all of them wait."""
    options = ["--idle", hosts.nodes[idle]] if idle else []
    argv = [sys.executable, str(DRIVER), *options, f"--queued={queued}", *(hosts.nodes[host] for host in members)]
    with (
        no_worker_left(hosts.tag),
        hosts.start(driver, argv, RAY_ADDRESS=hosts.address, RAY_AUTH_MODE="token") as child,
    ):
        child.wait_for_line("ready", deadline_s=60)
        wait_until(
            lambda: len(members_of(hosts)) == len(members), deadline_s=20, what=lambda: f"{len(members)} that wait"
        )
        yield


def members_of(hosts: Hosts) -> list[psutil.Process]:
    """The processes, as seen from outside, of all members that hold the token."""
    return [one for one in busy_workers(hosts.tag) if command_line(one)[:1] == ["ray::Member.pass_token"]]
