"""The installation of a runtime environment is found on the host where it runs."""

import sys
from pathlib import Path

import pytest

from tests.clusters.dstack_command import Json
from tests.clusters.ray_clusters import no_worker_left
from tests.hosts import Hosts
from tests.hosts.command import check
from tests.paths import EXAMPLES
from tests.processes import wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts_possible")]
DRIVER = Path(__file__).with_name("drivers") / "environment.py"


@pytest.mark.exhaustive
def test_an_installation_on_another_host_is_named_with_its_node(three_hosts: Hosts) -> None:
    command = [sys.executable, str(DRIVER), three_hosts.nodes[3]]
    environment = {"RAY_AUTH_MODE": "token", "PYTHONPATH": str(EXAMPLES.parent)}
    last: list[Json] = []

    def is_named() -> bool:
        last[:] = [check(three_hosts)]
        return any("by pip install model_" in finding["summary"] for finding in last[0]["findings"])

    with (
        no_worker_left(three_hosts.tag),
        three_hosts.start(1, command, RAY_ADDRESS=three_hosts.address, **environment) as child,
    ):
        child.wait_for_line("ready", deadline_s=60)
        wait_until(is_named, deadline_s=90, what=lambda: f"{last} {child.log.read_text()}")

    (finding,) = last[0]["findings"]
    assert "node 10.77.0.3), which has run for" in " ".join((finding["summary"], *finding["explanation"]))
    assert (last[0]["verdict"], last[0]["incomplete"]) == ("running", False)
