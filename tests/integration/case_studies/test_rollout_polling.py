"""The page ``rollout_polling``: the graph marks the calls of the trainer to the buffer, and has their rate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clusters.dstack_command import Json
from tests.clusters.shared_cluster import SharedCluster
from tests.examples.expected import expected_of
from tests.integration.case_studies.programs import CaseStudy, edges_of
from tests.paths import EXAMPLES

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

NAME = "case_studies/rollout_polling"
OF_JOB = ("--job", "rollout_polling.py")
"""Other programs have run on the shared cluster before."""
POLLED = ("Trainer", "Buffer")


@pytest.fixture(scope="module")
def study(shared: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseStudy]:
    with shared.running(NAME) as program:
        yield CaseStudy(program, tmp_path_factory.mktemp("polling"))


@pytest.fixture(scope="module")
def graph(study: CaseStudy) -> Json:
    """The graph once the trainer has taken several batches."""

    def has_batches() -> Json | None:
        document = study.document("graph", "--format", "json", *OF_JOB)
        edge = edges_of(document).get(POLLED)
        return document if edge and calls_of(edge).get("take", 0) >= 2 else None

    return study.until(has_batches, "the trainer has taken batches")


def calls_of(edge: Json) -> dict[str, int]:
    return {one["name"]: one["attempts"] for one in edge["methods"]}


def test_the_report_names_the_trainer(shared: SharedCluster, study: CaseStudy) -> None:
    shared.settled(expected_of(EXAMPLES / f"{NAME}.py"))


def test_the_trainer_polls_the_buffer_many_times_a_second(graph: Json) -> None:
    edges = edges_of(graph)
    size = next(one for one in edges[POLLED]["methods"] if one["name"] == "size")
    calls = calls_of(edges[POLLED])

    assert size["per_s"] >= 10
    assert calls["size"] > 10 * calls["take"]
    assert calls["size"] > sum(edge["attempts"] for edge in edges.values()) / 2
    assert all((edge["per_s"] or 0.0) < size["per_s"] / 2 for pair, edge in edges.items() if pair != POLLED)


def test_the_text_marks_the_rate(study: CaseStudy, graph: Json) -> None:
    lines = study.text("graph", *OF_JOB).splitlines()
    marked = [line.split()[0] for line in lines if "! " in line and line.startswith("    ")]

    assert marked == [".size"]


def test_the_stacks_show_the_loop(study: CaseStudy) -> None:
    def is_in_loop() -> bool:
        groups = {one["name"]: one for one in study.document("stacks", "--json", *OF_JOB)["groups"]}
        return "Trainer.fit" in {
            frame["name"] for stack in groups.get("actor Trainer", {}).get("stacks", ()) for frame in stack["frames"]
        }

    study.until(is_in_loop, "the trainer is in its loop")


def test_the_profile_names_the_polled_buffer(study: CaseStudy) -> None:
    study.until(lambda: study.is_bottleneck("Buffer.size"), "Buffer.size among the first chains")
