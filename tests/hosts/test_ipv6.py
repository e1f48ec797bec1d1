"""A cluster whose nodes have only IPv6 addresses is read like any other."""

import json
import subprocess
import sys

import pytest

from tests.hosts.drivers import ipv6
from tests.paths import ROOT

pytestmark = [pytest.mark.hosts, pytest.mark.exhaustive, pytest.mark.usefixtures("hosts_possible")]


def test_a_deadlock_is_found_by_an_ipv6_address_and_by_auto() -> None:
    command = [
        "unshare",
        "--net",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        "-m",
        ipv6.__name__,
    ]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    told = result["told"]
    assert result["address"].startswith(f"[{ipv6.ADDRESS}]:")
    assert (told["verdict"], told["incomplete"], told["exit_code"], result["auto"]) == ("deadlock", False, 1, 1)
    assert told["coverage"]["failures"] == []
    assert {member["node_ip"] for member in told["findings"][0]["members"]} == {ipv6.ADDRESS}
