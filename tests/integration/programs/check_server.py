"""Answers questions about a cluster, one a line: check_server.py ADDRESS

To ``check`` the answer is one line of JSON: what ``dstack check --json`` says, and the text report as ``report``. To
``left`` it is a list of all that keeps the cluster from being idle. As a process of its own it has the cluster's
environment, and it saves the start of a command for each snapshot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from dstack import capture
from dstack.analysis.diagnose import diagnose
from dstack.probes.connection.connect import connect
from dstack.probes.ray_state.control_plane import Inventory, take_inventory
from dstack.report.check_json import check_json
from dstack.report.text import report_text

TIMEOUT_S = 10.0


def main() -> None:
    address = sys.argv[1]
    cluster = connect(address)
    for line in sys.stdin:
        answer = check(address) if line.strip() == "check" else list(left(take_inventory(cluster, TIMEOUT_S)))
        print(json.dumps(answer), flush=True)


def check(address: str) -> Any:
    taken = capture.snapshot(address)
    diagnosis = diagnose(taken)
    return {**json.loads(check_json(taken, diagnosis)), "report": report_text(taken, diagnosis)}


def left(inventory: Inventory) -> Iterator[str]:
    """The drivers, actors and placement groups that are still there, and what is in use."""
    for worker in inventory.workers:
        if worker.is_driver:
            yield f"driver {worker.pid}"
    for actor in inventory.actors:
        if actor.state != "DEAD":
            yield f"actor {actor.name or actor.class_name}"
    for group in inventory.placement_groups:
        if group.state != "REMOVED":
            yield f"placement group {group.name}"
    for node in inventory.nodes:
        for name in ("CPU", "GPU"):
            if inventory.available.get(node.node_id, {}).get(name, 0.0) < node.resources.get(name, 0.0):
                yield f"{name} in use on node {node.node_id}"


if __name__ == "__main__":
    main()
