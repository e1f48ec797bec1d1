"""Wait until a cluster is complete: await_nodes.py ADDRESS IP...

Prints `nodes` and a JSON object, node id by IP address, once nodes with these addresses are alive.
"""

import json
import sys
import time

from ray._raylet import GcsClient
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.exceptions import RaySystemError, RpcError


def main() -> None:
    address, *awaited = sys.argv[1:]
    while not (nodes := alive_nodes(address)).keys() >= {*awaited}:
        time.sleep(0.2)
    print("nodes", json.dumps(nodes), flush=True)


def alive_nodes(address: str) -> dict[str, str]:
    """Node id by IP address; empty while the control plane does not answer, with the reason on stderr."""
    try:
        infos = GcsClient(address=address).get_all_node_info(timeout=2)
    except (RaySystemError, RpcError) as error:
        print(error, file=sys.stderr)
        return {}
    alive = [info for info in infos.values() if info.state == GcsNodeInfo.ALIVE]
    return {info.node_manager_address: info.node_id.hex() for info in alive}


if __name__ == "__main__":
    main()
