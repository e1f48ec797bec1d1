"""The programs with the argument ``fixed`` do not have the problem, as their pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.case_studies.register_center import WORKERS
from tests.clusters.dstack_command import Json
from tests.clusters.shared_cluster import SharedCluster
from tests.integration.case_studies.programs import CaseStudy, edges_of

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]


def method(edges: dict[tuple[str, str], Json], source: str, target: str, name: str) -> Json:
    """The figures of one method; empty if it was not called."""
    methods = edges.get((source, target), {}).get("methods", [])
    return next((one for one in methods if one["name"] == name), {"attempts": 0, "per_s": None, "mean_s": None})


def graph_after(study: CaseStudy, ends: tuple[str, str, str], calls: int) -> dict[tuple[str, str], Json]:
    """The edges once one method was called so many times."""

    def edges() -> dict[tuple[str, str], Json] | None:
        job = study.program.name + ".py"
        found = edges_of(study.document("graph", "--format", "json", "--job", job))
        return found if method(found, *ends)["attempts"] >= calls else None

    return study.until(edges, f"{calls} calls of {ends}")


def test_each_worker_asks_the_register_once(shared: SharedCluster, tmp_path: Path) -> None:
    with shared.running("case_studies/register_center", ["fixed"]) as program:
        study = CaseStudy(program, tmp_path)
        edges = graph_after(study, ("driver register_center.py", "Rollout", "generate"), 10 * WORKERS)

        assert method(edges, "Rollout", "Register", "peers")["attempts"] == WORKERS


def test_rewards_take_no_longer_than_other_roles(shared: SharedCluster, tmp_path: Path) -> None:
    driver = "driver rlhf_roles.py"
    with shared.running("case_studies/rlhf_roles", ["fixed"]) as program:
        edges = graph_after(CaseStudy(program, tmp_path), (driver, "Reward", "score"), 5)

        assert method(edges, driver, "Reward", "score")["mean_s"] < method(edges, driver, "Actor", "generate")["mean_s"]


def test_the_trainer_makes_one_call_for_each_batch(shared: SharedCluster, tmp_path: Path) -> None:
    with shared.running("case_studies/rollout_polling", ["fixed"]) as program:
        edges = graph_after(CaseStudy(program, tmp_path), ("Trainer", "WaitingBuffer", "take"), 5)

        assert set(edges) & {("Trainer", "Buffer")} == set()
        assert all((edge["per_s"] or 0.0) < 10 for edge in edges.values())
