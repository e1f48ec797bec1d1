"""The page ``rlhf_roles``: task time, timeline, graph and a recording show that rewards take most of the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from tests.clusters.shared_cluster import SharedCluster
from tests.examples.expected import expected_of
from tests.integration.case_studies.programs import CaseStudy, edges_of
from tests.paths import EXAMPLES

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

NAME = "case_studies/rlhf_roles"
DRIVER = "driver rlhf_roles.py"
OF_JOB = ("--job", "rlhf_roles.py")
"""Other programs have run on the shared cluster before."""
ROLES = {"Actor", "Critic", "Reference", "Reward"}


@pytest.fixture(scope="module")
def study(shared: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseStudy]:
    with shared.running(NAME) as program:
        yield CaseStudy(program, tmp_path_factory.mktemp("roles"))


@pytest.fixture(scope="module")
def file(study: CaseStudy) -> Path:
    """A snapshot with a history of which a timeline can name the step that limits."""

    def with_history() -> Path | None:
        taken = study.snapshot()
        return taken if "limits the throughput" in study.text("timeline", taken, *OF_JOB) else None

    return study.until(with_history, "a step limits the throughput")


def test_the_report_names_the_reward_model(shared: SharedCluster, study: CaseStudy) -> None:
    shared.settled(expected_of(EXAMPLES / f"{NAME}.py"))


def test_rewards_have_most_of_the_task_time(file: Path) -> None:
    time = AnalysedSnapshot.of(load(file)).task_time
    assert time is not None
    shares: Counter[str] = Counter()
    stacks = time.stacks(by="job").stacks
    newest = max(stack.groups for stack in stacks if stack.frames[0].name == DRIVER)
    for stack in stacks:
        if stack.groups == newest:
            shares[stack.frames[1].name if len(stack.frames) > 1 else "itself"] += stack.weight

    assert shares.most_common(1)[0][0] == "Reward.score"
    assert shares["Reward.score"] > sum(shares.values()) / 2


def test_the_timeline_names_the_role_that_limits(study: CaseStudy, file: Path) -> None:
    assert "Reward.score limits the throughput" in study.text("timeline", file, *OF_JOB)


def test_the_graph_has_the_duration_of_each_role(study: CaseStudy, file: Path) -> None:
    edges = edges_of(study.document("graph", file, "--format", "json", *OF_JOB))
    slowest = {
        target: max((one["mean_s"] or 0.0, one["name"]) for one in edge["methods"])
        for (source, target), edge in edges.items()
    }

    assert {source for source, _ in edges} == {DRIVER}
    assert set(slowest) == ROLES
    assert max(slowest.values())[1] == "score"


def test_a_recording_shows_the_function(study: CaseStudy) -> None:
    def is_recorded() -> bool:
        samples: Counter[str] = Counter()
        for line in study.text("record", "--duration", "2", "-o", "-", *OF_JOB).splitlines():
            stack, _, count = line.rpartition(" ")
            samples["edit_distance" if ";edit_distance (" in stack else "other"] += int(count)
        return samples["edit_distance"] > samples["other"]

    study.until(is_recorded, "most samples are in edit_distance")


def test_the_profile_names_the_function_of_the_reward_model(study: CaseStudy) -> None:
    study.until(lambda: study.is_bottleneck("edit_distance"), "edit_distance among the first chains")
