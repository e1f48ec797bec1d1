"""Wait for a task on a given node whose environment never gets installed: its server does not answer."""

from __future__ import annotations

import socket
import sys
import tempfile

import ray
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from examples.look_alikes.slow_environment import train, wheel


def main(node_id: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server, tempfile.TemporaryDirectory() as folder:
        package = wheel(folder, server.getsockname()[1], host=get_node_ip_address())
        ray.init(runtime_env={"py_modules": [package]})
        place = NodeAffinitySchedulingStrategy(node_id, soft=False)
        print("ready", flush=True)
        print(ray.get(train.options(scheduling_strategy=place).remote()))


if __name__ == "__main__":
    main(sys.argv[1])
