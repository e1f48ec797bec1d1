"""Waits at the ends of message queues with vLLM's names: a deadlock, a slow reader, an idle writer."""

import pytest

from tests.clusters.dstack_command import Json, settled_check
from tests.clusters.shared_cluster import SharedCluster
from tests.paths import PROGRAMS

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

PROGRAM = PROGRAMS / "drivers/message_queues.py"


@pytest.fixture(scope="module")
def document(shared: SharedCluster) -> Json:
    with shared.running(PROGRAM) as running:
        return settled_check(running.address, running.environment, has_all_findings)


def has_all_findings(document: Json) -> bool:
    return {"deadlock", "running"} <= {finding["kind"] for finding in document["findings"]}


def test_only_the_engine_that_calls_its_reader_is_deadlocked(document: Json) -> None:
    (deadlock,) = (finding for finding in document["findings"] if finding["kind"] == "deadlock")

    names = {member["execution"].partition(" of ")[0] for member in deadlock["members"]}

    assert names == {"Asking.ask", "Worker.ping", "Worker.run"}
    assert deadlock["confirmed"]
    assert not deadlock["assumed"]
