"""The page ``register_center``: the register is a hub with a queue, and the edges have the sizes of the data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.case_studies.register_center import BATCH_BYTES, CACHE_BYTES, KEPT_STEPS, WEIGHTS_BYTES, WORKERS
from tests.clusters.dstack_command import Json
from tests.clusters.shared_cluster import SharedCluster
from tests.examples.expected import expected_of
from tests.integration.case_studies.programs import CaseStudy, called_from, edges_of
from tests.paths import EXAMPLES

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

NAME = "case_studies/register_center"
DRIVER = "driver register_center.py"
OF_JOB = ("--job", "register_center.py")
"""Other programs have run on the shared cluster before."""
OVERHEAD = 1.05
"""Objects are a little larger than their bytes."""


@pytest.fixture(scope="module")
def study(shared: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseStudy]:
    with shared.running(NAME) as program:
        yield CaseStudy(program, tmp_path_factory.mktemp("register"))


@pytest.fixture(scope="module")
def graph(study: CaseStudy) -> Json:
    """The graph once the driver keeps the batches of all steps that it can keep."""

    def is_full() -> Json | None:
        document = study.document("graph", "--format", "json", *OF_JOB)
        edge = edges_of(document).get((DRIVER, "Rollout"))
        return document if edge and edge["live_bytes"] >= KEPT_STEPS * WORKERS * BATCH_BYTES else None

    return study.until(is_full, "the batches of some steps are alive")


def test_the_report_names_the_register(shared: SharedCluster, study: CaseStudy) -> None:
    shared.settled(expected_of(EXAMPLES / f"{NAME}.py"))


def test_every_worker_calls_the_register(graph: Json) -> None:
    edges = edges_of(graph)
    (peers,) = edges["Rollout", "Register"]["methods"]

    assert {source for source, target in edges if target == "Register"} == {DRIVER, "Rollout"}
    assert peers["name"] == "peers"
    assert peers["attempts"] >= WORKERS * KEPT_STEPS
    assert next(node["instances"] for node in graph["nodes"] if node["title"] == "Rollout") == WORKERS


def test_the_edges_have_the_sizes_of_the_live_data(graph: Json) -> None:
    edges = edges_of(graph)
    put = {node["title"]: node["put_bytes"] for node in graph["nodes"]}
    of_step = WORKERS * BATCH_BYTES

    assert edges[DRIVER, "Rollout"]["live_bytes"] <= (KEPT_STEPS + 2) * of_step * OVERHEAD
    assert WEIGHTS_BYTES <= edges[DRIVER, "Trainer"]["live_bytes"] <= 3 * WEIGHTS_BYTES * OVERHEAD
    assert WORKERS * CACHE_BYTES <= put["Rollout"] <= WORKERS * CACHE_BYTES * OVERHEAD
    assert edges["Rollout", "Register"]["live_bytes"] < BATCH_BYTES


def test_the_timeline_names_the_step_that_limits(study: CaseStudy, graph: Json) -> None:
    assert "Register.peers limits the throughput" in study.text("timeline", study.snapshot(), *OF_JOB)


def test_the_stacks_show_workers_in_the_queue(study: CaseStudy) -> None:
    def are_waiting() -> bool:
        return called_from(study.document("stacks", "--json", *OF_JOB), "actor Rollout").get("Rollout.generate", 0) >= 2

    study.until(are_waiting, "workers wait for the register")


def test_the_profile_names_the_register(study: CaseStudy) -> None:
    study.until(lambda: study.is_bottleneck("Register.peers"), "Register.peers among the first chains")
