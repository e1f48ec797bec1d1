"""`dstack doctor` on real clusters: one that it reads wholly, and none."""

from __future__ import annotations

import re

import pytest
import ray

from tests.clusters.dstack_command import dstack
from tests.clusters.ray_clusters import own_environment
from tests.clusters.shared_cluster import SharedCluster


@pytest.mark.ray
def test_a_readable_cluster_has_no_limits(shared: SharedCluster) -> None:
    with shared.running("two_actors") as example:
        done = dstack("doctor", "--address", example.address, environment=dict(example.environment))

    assert done.returncode == 0, done
    assert re.search(rf"✔ Ray {ray.__version__} on 1 of 1 node that answered", done.stdout), done
    assert re.search(r"Node \S+, head\n  ✔ (\d+) of \1 processes read: \1 by memory\n", done.stdout), done
    assert "✖" not in done.stdout


def test_without_a_cluster_this_machine_is_checked_and_the_error_says_what_to_do() -> None:
    with own_environment() as environment:
        done = dstack("doctor", "--address", "127.0.0.1:1", environment=dict(environment))

    assert done.returncode == 3
    assert done.stdout.startswith("This machine\n  ✔ Linux "), done
    assert done.stderr.startswith("Error: ")
