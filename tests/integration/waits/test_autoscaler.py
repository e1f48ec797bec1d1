"""Waits for nodes that Ray's autoscaler adds, fails to add, or has no type of."""

from __future__ import annotations

import json

import pytest

from tests.clusters.dstack_command import check, settled_check
from tests.clusters.ray_clusters import autoscaled_cluster
from tests.examples.expected import ALARMS
from tests.paths import PROGRAMS

pytestmark = pytest.mark.ray

TYPES = {
    "small": {"resources": {"CPU": 2}, "max_workers": 1},
    "dear": {"resources": {"CPU": 1, "fast": 1}, "max_workers": 1, "node_config": {"fails": True}},
}
SAID = {2: ("it can add no such node now", "launches of type dear have failed"), 1: ("p4d.24xlarge in us-east-1a",)}
"""What only each version reports; the first one has no list of requests, and the second one no reasons."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", [1, 2])
def test_what_the_autoscaler_reports_is_said_of_the_wait_for_it(version: int) -> None:
    with (
        autoscaled_cluster(TYPES, version=version) as cluster,
        cluster.run_example(PROGRAMS / "drivers/waits_for_autoscaler.py") as driver,
    ):
        early = check(driver.address, driver.environment)
        document = settled_check(
            driver.address, driver.environment, lambda found: all(text in json.dumps(found) for text in SAID[version])
        )

    assert early["verdict"] not in ALARMS
    assert (document["verdict"] in ALARMS, document["exit_code"]) == (False, 0)
