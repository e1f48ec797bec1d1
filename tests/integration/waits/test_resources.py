"""Findings about waits for resources on real Ray, and their explanations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.clusters.dstack_command import Json
from tests.clusters.shared_cluster import SharedCluster, shared_cluster
from tests.paths import PROGRAMS
from tests.processes import wait_until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.exhaustive,
]  # examples/hangs has each of these ways; this module has the words
PROGRAM = PROGRAMS / "drivers/resources.py"


@dataclass(frozen=True)
class ExpectedFinding:
    """The kind of the first finding, its resources, and parts of its explanation."""

    kind: str
    resources: tuple[str, ...]
    words: tuple[str, ...]


WAYS = {
    "lent": ExpectedFinding("running", (), ("time.sleep(seconds)",)),
    "gpus": ExpectedFinding(
        "deadlock", ("GPU",), ("train waits for GPU, held by train", "ray.get(train.remote(depth - 1))")
    ),
    "actors": ExpectedFinding(
        "deadlock",
        ("CPU",),
        ('actor Keeper "last"', "which holds 1 CPU", "depends on driver resources.py", "ray.get(keepers[-1]"),
    ),
    "actors_of_a_busy_driver": ExpectedFinding(
        "starved", ("CPU",), ("which holds 1 CPU", "depends on driver resources.py")
    ),
    "full_bundle": ExpectedFinding("deadlock", ("CPU",), ("compute waits for CPU, held by actor Keeper", "Keeper.ask")),
    "infeasible": ExpectedFinding("infeasible", (), ("placement group large", "no single node can hold all of it")),
    "too_much_in_all": ExpectedFinding("infeasible", (), ("placement group wide", "all nodes together have 4 CPU")),
    "spread": ExpectedFinding(
        "deadlock", ("CPU",), ("placement group apart waits for CPU, held by actor Keeper", "driver resources.py")
    ),
    "second_group": ExpectedFinding(
        "deadlock",
        ("CPU",),
        ("placement group second waits for CPU, held by placement group first", "driver resources.py"),
    ),
    "detached": ExpectedFinding("starved", ("GPU",), ('actor Keeper "keeper ', "outside of all running jobs")),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[SharedCluster]:
    with shared_cluster(2, num_cpus=2, num_gpus=1) as cluster:
        yield cluster


@pytest.mark.parametrize("way", WAYS)
def test_a_wait_for_resources_is_reported_with_its_holders(cluster: SharedCluster, way: str) -> None:
    expected = WAYS[way]
    with cluster.running(PROGRAM, [way]):
        documents: list[Json] = []

        def is_reported_twice() -> bool:
            documents.append(cluster.check())
            return len(documents) > 1 and all(is_as_expected(document, expected) for document in documents[-2:])

        wait_until(is_reported_twice, deadline_s=40, what=lambda: f"{expected}, twice: {explanations(documents[-1])}")

    assert not documents[-1]["incomplete"]


def is_as_expected(document: Json, expected: ExpectedFinding) -> bool:
    findings = document["findings"]
    if not findings or findings[0]["kind"] != expected.kind or tuple(findings[0]["resources"]) != expected.resources:
        return False
    is_confirmed = findings[0]["confirmed"] or expected.kind in ("running", "starved")
    return len(findings) == 1 and is_confirmed and all(words in explanations(document) for words in expected.words)


def explanations(document: Json) -> str:
    """All sentences of the findings."""
    return "\n".join(
        sentence for finding in document["findings"] for sentence in (finding["summary"], *finding["explanation"])
    )
