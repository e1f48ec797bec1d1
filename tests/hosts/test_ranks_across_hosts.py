"""Ranks on several hosts that do not make the same calls: the one that differs is named, with its call."""

import sys
from pathlib import Path

import pytest

from tests.clusters.dstack_command import Json
from tests.clusters.ray_clusters import no_worker_left
from tests.hosts import Hosts
from tests.hosts.command import check
from tests.processes import wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.libraries, pytest.mark.usefixtures("hosts_possible")]
DRIVER = Path(__file__).with_name("drivers") / "ranks.py"


def test_the_rank_that_left_out_a_call_is_named(three_hosts: Hosts) -> None:
    """The driver is on the first host; ranks 0 and 1 are on the second, rank 2 is on the third."""
    nodes = [three_hosts.nodes[host] for host in (2, 2, 3)]
    command = [sys.executable, str(DRIVER), *nodes]
    last: list[Json] = []

    def is_found() -> bool:
        last[:] = [check(three_hosts)]
        return bool(last[0]["verdict"] == "deadlock")

    with (
        no_worker_left(three_hosts.tag),
        three_hosts.start(1, command, RAY_ADDRESS=three_hosts.address, RAY_AUTH_MODE="token") as child,
    ):
        child.wait_for_line("ready", deadline_s=120)
        wait_until(is_found, deadline_s=120, what=lambda: f"{last} {child.log.read_text()}")

    difference = last[0]["findings"][0]["difference"]
    lines = DRIVER.read_text().splitlines()
    broadcast = next(number for number, line in enumerate(lines, 1) if "dist.broadcast" in line)
    assert (difference["kind"], difference["ranks"], difference["number"]) == ("operation", [2], 26)
    assert (difference["operation"], difference["line"]) == ("broadcast", broadcast)
    assert (difference["own_operation"], difference["own_line"]) == ("all_reduce", broadcast - 3)
