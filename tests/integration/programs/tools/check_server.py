"""Answer questions about a cluster, one on each line of stdin: check_server.py ADDRESS NODES_SETTLE_AFTER

The answer to ``check`` is the document of ``dstack check --json`` with the text report as ``report``. The answer to
``busy`` is a list of the reasons why the cluster is not idle. A separate process has the cluster's environment, and
no command has to start for each snapshot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.collecting import capture
from dstack.probes.connection.connect import connect
from dstack.probes.ray_state.control_plane import Inventory, take_inventory
from dstack.report.check_json import check_json
from dstack.report.text import report_text

TIMEOUT_S = 10.0


def main() -> None:
    address, nodes_settle_s = sys.argv[1], float(sys.argv[2])
    cluster = connect(address)
    for line in sys.stdin:
        if line.strip() == "check":
            answer = check(address, nodes_settle_s)
        else:
            answer = list(busy_parts(take_inventory(cluster, TIMEOUT_S)))
        print(json.dumps(answer), flush=True)


def check(address: str, nodes_settle_s: float) -> Any:
    analysed = AnalysedSnapshot.of(capture.snapshot(address), nodes_settle_s=nodes_settle_s)
    return {**json.loads(check_json(analysed)), "report": report_text(analysed)}


def busy_parts(inventory: Inventory) -> Iterator[str]:
    """The remaining drivers, actors and placement groups, and the resources in use."""
    for worker in inventory.workers:
        if worker.is_driver:
            yield f"driver {worker.pid}"
    for actor in inventory.actors:
        if actor.state != "DEAD":
            yield f"actor {actor.name or actor.class_name}"
    for group in inventory.placement_groups:
        if group.state != "REMOVED":
            yield f"placement group {group.name}"
    for node in (node for node in inventory.nodes if node.alive):
        for name in ("CPU", "GPU"):
            if inventory.available.get(node.node_id, {}).get(name, 0.0) < node.resources.get(name, 0.0):
                yield f"{name} in use on node {node.node_id}"


if __name__ == "__main__":
    main()
