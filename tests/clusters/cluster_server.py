"""Run a cluster of several nodes on this machine until it is killed: cluster_server.py NODES

NODES is a JSON list with one object of `Cluster.add_node` arguments for each node, the head first. Prints
`address HOST:PORT` once all nodes are alive. A separate program keeps tests free of connections to Ray, and killing it
ends the whole cluster.
"""

import json
import signal
import sys
from typing import Any

from ray.cluster_utils import Cluster


def main() -> None:
    nodes: list[dict[str, Any]] = json.loads(sys.argv[1])
    cluster: Any = Cluster()
    for arguments in nodes:
        # Any port for the agent: waiting for the usual one, when another cluster has it, takes Ray 3 s.
        cluster.add_node(include_dashboard=False, dashboard_agent_listen_port=0, **arguments)
    cluster.wait_for_nodes()
    print(f"address {cluster.address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
