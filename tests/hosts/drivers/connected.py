"""Two actors, each on its host: one reads from a connection to the other, which waits for a call of the first.

connected.py NODE_ID NODE_ID. Prints `ready` once both are connected.
"""

import socket
import sys
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class Listener:
    def listen(self) -> tuple[str, int]:
        self.server = socket.create_server((ray.util.get_node_ip_address(), 0))
        address: tuple[str, int] = self.server.getsockname()
        return address

    def read(self) -> bytes:
        connection, _ = self.server.accept()
        return connection.recv(1)

    def settings(self) -> None:
        pass


class Sender:
    def connect(self, address: tuple[str, int]) -> None:
        self.connection = socket.create_connection(address)

    def send(self, listener: Any) -> None:
        ray.get(listener.settings.remote())
        self.connection.send(b"1")


def actor_on(node: str, kind: type) -> Any:
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    actor: Any = ray.remote(kind).options(num_cpus=1, scheduling_strategy=place)
    return actor.remote()


def main() -> None:
    ray.init(log_to_driver=False)
    listener, sender = actor_on(sys.argv[1], Listener), actor_on(sys.argv[2], Sender)
    address = ray.get(listener.listen.remote())
    read = listener.read.remote()
    ray.get(sender.connect.remote(address))
    sent = sender.send.remote(listener)
    print("ready", flush=True)
    ray.get([read, sent])


if __name__ == "__main__":
    main()
