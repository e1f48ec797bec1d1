"""Programs that wait for a node that joins late or returns are never called a hang, from their start to their end.

In a cluster that ``ray.init()`` made for its driver no other node joins: there it is a hang at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.clusters.dstack_command import Json, check, dstack
from tests.clusters.ray_clusters import ray_cluster, run_example
from tests.processes import wait_until

pytestmark = pytest.mark.ray

DEFAULT = ("--nodes-settle-after", "60")
ENDS_S = 120.0
PROGRAM = """
import os, ray

@ray.remote(num_cpus=0, resources={"tape": 1})
def archive():
    pass


ray.init(os.environ.get("RAY_ADDRESS", "local"))
print("ready", flush=True)
ray.get(archive.remote())
print("done", flush=True)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("look_alikes/lost_node_returns", "had 2 tape until"),
        ("look_alikes/node_joins_late", "there are 2 nodes for 3 bundles, but"),
    ],
)
def test_it_is_no_hang_at_any_moment(name: str, words: str) -> None:
    with run_example(name, variables={"AWAY_S": "25", "LATE_S": "25"}) as example:
        process = psutil.Process(example.pid)
        documents: list[Json] = []

        def has_ended() -> bool:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                documents.extend(_checked(example.address, example.environment))
                return False
            return True

        wait_until(has_ended, deadline_s=ENDS_S, what=lambda: f"its end: {example.output()}")

    assert documents
    assert {document["exit_code"] for document in documents} <= {0, 4}
    assert any(words in finding["summary"] for document in documents for finding in document["findings"])


@pytest.mark.exhaustive
def test_what_may_still_join_from_outside_of_a_job_at_rest_is_stalled(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with ray_cluster(1, num_cpus=1) as cluster, cluster.run_example(program) as example:

        def stalled() -> Json | None:
            document = check(cluster.address, cluster.environment, *DEFAULT)
            assert document["exit_code"] in (0, 4)
            return document if document["verdict"] == "stalled" else None

        document = wait_until(stalled, deadline_s=30.0, what=lambda: "stalled")
        hang = check(cluster.address, cluster.environment)
        with _start_node(cluster.address, cluster.joining) as node:
            wait_until(lambda: "done" in example.output(), deadline_s=ENDS_S, what=lambda: f"done: {example.output()}")
            node.kill()

    (finding,) = document["findings"]
    assert "no node has any tape, but the cluster is" in finding["summary"]
    assert (hang["exit_code"], hang["verdict"]) == (1, "hang")
    assert "no node has any tape, and none has joined for" in hang["findings"][0]["summary"]


def test_in_a_cluster_of_its_driver_it_is_a_hang_at_once(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with run_example(program) as example:

        def alarm() -> Json | None:
            document = check(example.address, example.environment, *DEFAULT)
            assert document["verdict"] in ("hang", "running", "idle")  # its task is not submitted yet
            return document if document["exit_code"] == 1 else None

        document = wait_until(alarm, deadline_s=30.0, what=lambda: "a hang")

    assert "can never run: it asks for 1 tape, but no node has any tape" in document["findings"][0]["summary"]


def _checked(address: str, environment: Mapping[str, str]) -> list[Json]:
    """The document of a check; none if the cluster has ended."""
    done = dstack("check", "--address", address, "--json", environment=environment)
    return [{**json.loads(done.stdout), "exit_code": done.returncode}] if done.returncode != 3 else []


def _start_node(address: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    options = ["--num-cpus=0", '--resources={"tape": 1}', "--dashboard-agent-listen-port=0", "--block"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", *options]
    return subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
