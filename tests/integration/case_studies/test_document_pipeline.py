"""What the page ``docs/case-studies/document_pipeline.md`` says: the step that limits, and the GPU that is free."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.shared_cluster import shared_cluster
from tests.clusters.two_sites import TWO_SITES
from tests.examples.expected import expected_of
from tests.integration.case_studies.programs import CaseStudy, edges_of
from tests.paths import EXAMPLES

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

NAME = "case_studies/document_pipeline"
STEPS = ["download", "analyse", "summarise", "write"]
CHAINS = f"chains through {' → '.join(STEPS)}"
DRIVER = "driver document_pipeline.py"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseStudy]:
    """The program, once a check has its expected verdict."""
    with shared_cluster(**TWO_SITES) as shared, shared.running(NAME) as program:
        shared.settled(expected_of(EXAMPLES / f"{NAME}.py"))
        yield CaseStudy(program, tmp_path_factory.mktemp("document_pipeline"))


@pytest.fixture(scope="module")
def file(study: CaseStudy) -> Path:
    """A snapshot that shows the free GPU and, in its history, the step that limits the pipeline."""

    def is_found() -> Path | None:
        taken = study.snapshot()
        timeline = study.text("timeline", taken)
        is_limited = CHAINS in timeline and "analyse limits the throughput" in timeline
        return taken if is_limited and "Free elsewhere" in study.text("show", taken) else None

    return study.until(is_found, "the step that limits")


def test_a_gpu_is_free_on_the_other_node(study: CaseStudy, file: Path) -> None:
    report = " ".join(study.text("show", file).split())

    assert "Free elsewhere: 1 of 1 GPU is free on node " in report
    assert "(analyse) wait" in report
    assert "for site_a, which node " in report


def test_the_timeline_names_the_step_before_which_documents_pile_up(study: CaseStudy, file: Path) -> None:
    text = study.text("timeline", file)

    assert CHAINS in text
    assert "analyse limits the throughput: 1 at once is in use" in text


def test_the_graph_has_the_pending_calls_of_each_step(study: CaseStudy, file: Path) -> None:
    edges = edges_of(study.document("graph", file, "--format", "json"))

    assert {(DRIVER, step) for step in STEPS} <= set(edges)
    assert edges[DRIVER, "analyse"]["mean_s"] > edges[DRIVER, "summarise"]["mean_s"]
    assert edges[DRIVER, "write"]["pending"] >= edges[DRIVER, "analyse"]["pending"] >= 1


def test_the_profile_names_the_step_that_limits(study: CaseStudy) -> None:
    study.until(lambda: study.is_bottleneck("analyse"), "analyse among the first chains")
