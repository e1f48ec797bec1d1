"""What ran on the recorded cluster: a job with a deadlock of two actors on two nodes, among many other waits.

The nodes have a resource each: H (the driver), R and S (a member of the deadlock each), P and Q. Each has ten workers
or drivers. It prints `ready` when everything waits.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import ray
from ray.actor import ActorHandle

WORKERS = 10


@ray.remote(num_cpus=0)
class ParameterServer:
    """What most actors wait for, one after the other."""

    def pull(self) -> None:
        while True:
            time.sleep(0.5)


@ray.remote(num_cpus=0)
class Trainer:
    """Waits for the parameters."""

    def __init__(self, server: ActorHandle[Any]) -> None:
        self.server = server

    def train(self) -> None:
        ray.get(self.server.pull.remote())


@ray.remote(num_cpus=0)
class Stage:
    """Waits for the next stage, on another node."""

    def __init__(self, following: ActorHandle[Any]) -> None:
        self.following = following

    def forward(self) -> None:
        ray.get(self.following.train.remote())


@ray.remote(num_cpus=0)
class Account:
    """A member of the deadlock."""

    def connect(self, other: ActorHandle[Any]) -> None:
        self.other = other

    def transfer(self) -> None:
        ray.get(self.other.deposit.remote())

    def deposit(self) -> None:
        pass


@ray.remote(num_cpus=0)
class Loader:
    """Is between two tasks."""

    def load(self) -> int:
        return 1


def main() -> None:
    ray.init(sys.argv[1], log_to_driver=False)
    server = ParameterServer.options(resources={"H": 1}).remote()
    accounts = [Account.options(resources={node: 1}).remote() for node in "RS"]
    ray.get([one.connect.remote(other) for one, other in zip(accounts, accounts[::-1], strict=True)])
    trainers = {node: [Trainer.options(resources={node: 1}).remote(server) for _ in range(5)] for node in "RSPQ"}
    stages = [
        Stage.options(resources={node: 1}).remote(trainers[following][0])
        for node, following in zip("PQRS", "QPSR", strict=True)
        for _ in range(2)
    ]
    used = {"H": 2, "R": 8, "S": 8, "P": 7, "Q": 7}
    loaders = [
        Loader.options(resources={node: 1}).remote() for node, number in used.items() for _ in range(WORKERS - number)
    ]
    ray.get([loader.load.remote() for loader in loaders])
    running = [server.pull.remote()]
    running += [one.train.remote() for several in trainers.values() for one in several]
    running += [stage.forward.remote() for stage in stages]
    running += [account.transfer.remote() for account in accounts]
    print("ready", flush=True)
    ray.get(running)


if __name__ == "__main__":
    main()
