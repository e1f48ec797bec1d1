"""``dstack stacks`` on a real cluster."""

from __future__ import annotations

import json

import pytest

from tests.clusters.dstack_command import dstack
from tests.clusters.shared_cluster import SharedCluster
from tests.processes import wait_until

pytestmark = pytest.mark.ray

SETTLED_S = 60.0


def test_the_stacks_of_a_deadlock_are_merged_listed_and_exported(shared: SharedCluster) -> None:
    with shared.running("two_actors") as program:
        where = ("--address", program.address)

        def is_settled() -> bool:
            document = json.loads(dstack("stacks", *where, "--json", environment=program.environment).stdout)
            return bool(document["activities"] == {"waiting": 3})

        wait_until(is_settled, deadline_s=SETTLED_S, what=lambda: "settled")
        merged = dstack("stacks", *where, environment=program.environment)
        listed = dstack("stacks", *where, "--by", "process", "--whole", environment=program.environment)
        folded = dstack("stacks", *where, "--format", "folded", environment=program.environment)

    assert (merged.returncode, listed.returncode, folded.returncode) == (0, 0, 0)
    assert merged.stdout.startswith("3 stacks of 3 processes: 3 waiting\n")
    assert "1 × actor Cashier  in ray.get at two_actors.py:" in merged.stdout
    assert "waits  Cashier.order  ray.get → Kitchen.cook" in listed.stdout
    assert sorted(line.partition(";")[0] for line in folded.stdout.splitlines()) == [
        "actor Cashier",
        "actor Kitchen",
        "driver two_actors.py",
    ]
