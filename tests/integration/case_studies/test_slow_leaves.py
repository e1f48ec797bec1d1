"""What the page ``docs/case-studies/slow_leaves.md`` says: one leaf of the tree is slow, and its callers only wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clusters.shared_cluster import SharedCluster
from tests.examples.expected import expected_of
from tests.integration.case_studies.programs import CaseStudy, edges_of
from tests.paths import EXAMPLES

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

NAME = "case_studies/slow_leaves"
LEAVES = 6
OF_JOB = ("--job", "slow_leaves.py")
"""The cluster still has the history of other programs."""


@pytest.fixture(scope="module")
def study(shared: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseStudy]:
    """The program, once a check has its expected verdict."""
    with shared.running(NAME) as program:
        shared.settled(expected_of(EXAMPLES / f"{NAME}.py"))
        yield CaseStudy(program, tmp_path_factory.mktemp("slow_leaves"))


@pytest.fixture(scope="module")
def file(study: CaseStudy) -> Path:
    """A snapshot whose history shows what limits the rounds."""

    def is_found() -> Path | None:
        taken = study.snapshot()
        return taken if "Archive.restore limits the throughput" in study.text("timeline", taken, *OF_JOB) else None

    return study.until(is_found, "the step that limits")


def test_the_stacks_show_one_leaf_in_other_code_than_the_others(study: CaseStudy) -> None:
    def outlier() -> str | None:
        text = study.text("stacks", *OF_JOB)
        return text if "is in other code than" in text else None

    text = study.until(outlier, "an outlier")
    assert "× actor Leaf  " in text
    assert "in ray.get at slow_leaves.py" in text
    assert "actor Archive  in Archive.restore at slow_leaves.py" in text


def test_the_graph_is_the_tree_and_only_one_callee_is_slow(study: CaseStudy, file: Path) -> None:
    edges = edges_of(study.document("graph", file, "--format", "json", *OF_JOB))
    restored = edges["Leaf", "Archive"]
    read = next(one for one in edges["Branch", "Leaf"]["methods"] if one["name"] == "read")

    assert set(edges) == {
        ("driver slow_leaves.py", "Branch"),
        ("driver slow_leaves.py", "Archive"),
        ("Branch", "Branch"),
        ("Branch", "Leaf"),
        ("Leaf", "Archive"),
    }
    assert read["attempts"] >= LEAVES * restored["attempts"] > 0
    assert restored["mean_s"] > 1.3 * read["mean_s"]


def test_the_timeline_names_the_archive(study: CaseStudy, file: Path) -> None:
    text = study.text("timeline", file, *OF_JOB)

    assert "chains through Leaf.read → Archive.restore" in text
    assert "Archive.restore limits the throughput: 1 at once is in use" in text


def test_the_profile_names_the_archive(study: CaseStudy) -> None:
    study.until(lambda: study.is_bottleneck("Archive.restore"), "Archive.restore among the first chains")
