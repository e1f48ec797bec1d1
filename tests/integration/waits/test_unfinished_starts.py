"""Unfinished starts are explained on real Ray: an installation, an actor that dies repeatedly, a hanging fork."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ray.core.generated import gcs_pb2

from tests.clusters.dstack_command import CHECK_PAUSE_S, Json
from tests.clusters.shared_cluster import SETTLED_S, SharedCluster
from tests.processes import wait_until

REPORTS_ERRORS = "previous_incarnations" in gcs_pb2.ActorTableData.DESCRIPTOR.fields_by_name
"""Whether this version of Ray reports why the earlier processes of an actor ended."""

pytestmark = pytest.mark.ray


def settled(cluster: SharedCluster, is_right: Callable[[str], bool]) -> Json:
    """The first document with a single finding, whose explanation meets ``is_right``."""
    last: list[Json] = []

    def found() -> bool:
        last[:] = [cluster.check()]
        texts = ["\n".join([one["summary"], *one["explanation"]]) for one in last[0]["findings"]]
        return len(texts) == 1 and is_right(texts[0])

    wait_until(found, deadline_s=SETTLED_S, what=lambda: f"{last[0]['findings']}", pause_s=CHECK_PAUSE_S)
    return last[0]


def test_the_installation_of_an_environment_is_named_with_its_output(shared: SharedCluster) -> None:
    with shared.running("look_alikes/slow_environment"):
        document = settled(shared, lambda text: "by pip install model_" in text and "Collecting weights" in text)

    (finding,) = document["findings"]
    assert (document["verdict"], document["incomplete"]) == ("running", False)
    assert "which has run for" in finding["summary"]
    assert finding["advice"]["text"].startswith('`dstack logs "node ')


@pytest.mark.parametrize("name", ["crashing_call", "always_restarting"])
def test_restarts_are_counted_with_the_last_error(name: str, shared: SharedCluster) -> None:
    error = "; its last process ended with: " if REPORTS_ERRORS else "\n"

    with shared.running(f"look_alikes/{name}"):
        document = settled(shared, lambda text: f" times (no limit){error}" in text)

    (finding,) = document["findings"]
    assert (document["verdict"], document["incomplete"]) == ("running", False)
    assert "max_restarts" in finding["advice"]["text"]
    assert ("is at attempt" in "\n".join(finding["explanation"])) == (name == "crashing_call")


def test_a_hanging_fork_is_reported_with_its_line_and_fix(shared: SharedCluster) -> None:
    with shared.running("hangs/get_after_fork"):
        document = settled(shared, lambda text: "2 child processes of actor Loader" in text)

    (finding,) = document["findings"]
    assert (document["verdict"], finding["confirmed"]) == ("hang", True)
    assert "waits in ray.get at get_after_fork.py:" in finding["summary"]
    assert "spawn" in finding["advice"]["text"]
