"""On real Ray dead producers differ from those that do not answer."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.clusters.dstack_command import Json, check, settled_check
from tests.clusters.ray_clusters import Example, run_example
from tests.paths import PROGRAMS

pytestmark = pytest.mark.ray

PROGRAM = PROGRAMS / "drivers/dead_node.py"
DEAD_WORKERS = """
import msgspec, sys
from dstack.probes.connection.connect import connect
from dstack.probes.ray_state.control_plane import take_inventory
inventory = take_inventory(connect(sys.argv[1]), 5.0)
nodes = [node for node in inventory.nodes if not node.alive]
print(msgspec.json.encode([list(inventory.gone_workers.values()), nodes]).decode())
"""
NODE_DEATH_S = 60.0


@pytest.fixture(scope="module")
def program() -> Iterator[Example]:
    """The program, once Ray has declared its node dead."""
    with run_example(PROGRAM, deadline_s=120.0) as running:
        settled_check(running.address, running.environment, are_reported, deadline_s=NODE_DEATH_S)
        yield running


def are_reported(document: Json) -> bool:
    return {"restarted", "lost", "borrowed"} <= behind(document, "infeasible").keys()


def behind(document: Json, kind: str) -> dict[str, str]:
    """The first member of the finding of this kind by the names of the threads blocked behind it."""
    return {
        str(waiter["thread"]): finding["members"][0]["execution"]
        for finding in document["findings"]
        if finding["kind"] == kind
        for waiter in finding["blocked_behind"]
    }


def printed_pid(program: Example, word: str) -> int:
    line = next(line for line in program.output().splitlines() if line.startswith(f"{word} "))
    return int(line.split()[1])


def test_a_task_that_no_live_node_can_run_is_infeasible(program: Example) -> None:
    document = check(program.address, program.environment)

    at_fault = behind(document, "infeasible")
    assert document["verdict"] == "hang"
    assert at_fault["restarted"] == "Actor.__init__ (restart 1)"
    assert at_fault["lost"] == "load"
    assert at_fault["borrowed"] == "never"
    assert all(finding["confirmed"] for finding in document["findings"] if finding["kind"] == "infeasible")


def test_workers_of_a_dead_node_are_dead_with_a_cause(program: Example) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DEAD_WORKERS, program.address],
        env=program.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    workers, (node,) = json.loads(done.stdout)
    ended = {worker["pid"]: worker for worker in workers}
    dead = ended[printed_pid(program, "dead")]
    assert dead["node_id"] == node["node_id"]
    assert dead["cause"]
    assert abs(dead["ended_at"] - node["ended_at"]) < NODE_DEATH_S
    assert printed_pid(program, "owner") not in ended


def test_an_owner_that_does_not_answer_is_not_dead(program: Example) -> None:
    owner = psutil.Process(printed_pid(program, "owner"))
    owner.send_signal(signal.SIGSTOP)
    try:
        document = check(program.address, program.environment)
    finally:
        owner.send_signal(signal.SIGCONT)

    assert document["incomplete"]
    assert not behind(document, "orphaned")
    assert "borrowed" not in behind(document, "infeasible")
    blockers = [blocker["execution"] for finding in document["findings"] for blocker in finding["final_blockers"]]
    assert any(f"whose owner, worker (pid {owner.pid}, " in one and "did not answer" in one for one in blockers), (
        blockers
    )


def test_a_node_that_was_lost_a_short_time_ago_may_return(program: Example) -> None:
    document = check(program.address, program.environment, "--nodes-settle-after", "600")

    assert document["exit_code"] in (0, 4)
    named = [blocker["execution"] for finding in document["findings"] for blocker in finding["final_blockers"]]
    assert any("had 1 special until" in one for one in named), named
