"""A profile across hosts: a driver on one host waits for tasks on another one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from dstack.analysis.stacks.profiles import times_of
from dstack.files.sampled_file import PROFILES
from dstack.report.profile_text import profile_summary
from tests.clusters.ray_clusters import no_worker_left
from tests.hosts import Hosts
from tests.hosts.command import dstack, dstack_processes
from tests.processes import wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts_possible")]

DRIVER = Path(__file__).with_name("drivers") / "slow_task.py"
SLEEP_LINE = DRIVER.read_text().splitlines().index("    time.sleep(0.5)") + 1
CLEANUP_S = 60.0


@pytest.mark.exhaustive
def test_a_profile_follows_a_driver_to_a_task_on_another_host(three_hosts: Hosts) -> None:
    hosts = three_hosts
    argv = [sys.executable, str(DRIVER), hosts.nodes[2]]
    with (
        no_worker_left(hosts.tag),
        hosts.start(1, argv, RAY_ADDRESS=hosts.address, RAY_AUTH_MODE="token") as child,
    ):
        child.wait_for_line("ready", deadline_s=60)
        options = ["--address", hosts.address, "--duration", "6", "--rate", "5"]
        done = dstack(hosts, 3, "profile", *options, "--force", "-o", f"{hosts.shared}/profile.json")
    assert done.returncode == 0, done.stderr

    profile = PROFILES.loads(Path(f"{hosts.shared}/profile.json").read_bytes())
    total = sum(one.weight_us for one in times_of(profile))
    slow = sum(
        one.weight_us
        for one in times_of(profile)
        if any((step.function, step.line) == ("slow", SLEEP_LINE) for step in one.path)
    )
    assert profile.roots == ("driver slow_task.py",)
    assert slow > 0.25 * total, profile_summary(profile)  # on a busy host, the start of each task takes as long
    assert 0 < profile.coverage.spread_ms < 2000
    assert re.search(r" of all nodes within [\d.]+ m?s$", done.stderr.splitlines()[0]), done.stderr
    wait_until(
        lambda: not dstack_processes(hosts),
        deadline_s=CLEANUP_S,
        what=lambda: f"end of {dstack_processes(hosts)}",
    )
