"""A TCP connection between actors of two hosts is followed to the process at its other end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.clusters.dstack_command import Json
from tests.clusters.ray_clusters import no_worker_left
from tests.hosts import Hosts
from tests.hosts.command import check
from tests.processes import wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts_possible")]
DRIVER = Path(__file__).with_name("drivers") / "connected.py"


def test_a_deadlock_through_a_connection_and_a_ref_is_suspected(three_hosts: Hosts) -> None:
    argv = [sys.executable, str(DRIVER), three_hosts.nodes[2], three_hosts.nodes[3]]
    started = three_hosts.start(1, argv, RAY_ADDRESS=three_hosts.address, RAY_AUTH_MODE="token")
    with no_worker_left(three_hosts.tag), started as driver:
        driver.wait_for_line("ready", deadline_s=60)

        def found() -> Json | None:
            document = check(three_hosts)
            return document if document["verdict"] == "deadlock" else None

        document = wait_until(found, deadline_s=60, what=lambda: f"a deadlock: {check(three_hosts)}")

    (finding,) = document["findings"]
    assert not finding["confirmed"]
    places = {member["execution"]: member["node_ip"] for member in finding["members"]}
    assert (places["Listener.read"], places["Sender.send"]) == ("10.77.0.2", "10.77.0.3")
