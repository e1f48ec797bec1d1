"""`dstack cure --break` cancels a task or kills an actor of a deadlock, and nothing unless it is told to."""

from __future__ import annotations

import pytest

from tests.clusters.dstack_command import Json, Result, dstack, settled_check
from tests.clusters.ray_clusters import Example
from tests.clusters.shared_cluster import SharedCluster

pytestmark = pytest.mark.ray


def cure(example: Example, *options: str) -> Result:
    return dstack("cure", "--address", example.address, *options, environment=example.environment)


def has_its_driver_behind(document: Json) -> bool:
    return document["verdict"] == "deadlock" and bool(document["findings"][0]["blocked_behind"])


def test_a_cancelled_task_frees_its_callers_and_nothing_is_cancelled_without_an_answer(shared: SharedCluster) -> None:
    with shared.in_use() as cluster, cluster.run_example("two_actors") as example:
        settled_check(example.address, example.environment, has_its_driver_behind)

        listed, refused = cure(example), cure(example, "--break", "Kitchen.cook")
        broken = cure(example, "--break", "Kitchen.cook", "--yes")

    assert "1. raise max_concurrency of Cashier to 2 (now 1): frees all 4." in listed.stdout
    assert "dstack cure --break Kitchen.cook" in listed.stdout
    assert refused.returncode == 2
    assert "Add --yes." in refused.stderr
    assert broken.returncode == 0, broken
    assert "cancels Kitchen.cook, which ends with an error: frees the other 3" in broken.stderr
    assert broken.stdout.startswith("Freed or ended: 4 of 4 waits.")


@pytest.mark.exhaustive
def test_a_killed_actor_frees_what_waits_for_it(shared: SharedCluster) -> None:
    with shared.in_use() as cluster, cluster.run_example("hangs/lock_and_callback") as example:
        settled_check(example.address, example.environment, lambda document: document["verdict"] == "deadlock")

        broken = cure(example, "--break", "warehouse", "--yes")

    assert broken.returncode == 0, broken
    assert "kills actor Warehouse" in broken.stderr
    assert broken.stdout.startswith("Freed or ended: 4 of 4 waits.")
