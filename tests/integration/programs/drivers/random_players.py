"""Actors that wait for each other by ray.get, file locks and Unix sockets, as the JSON in the first argument says.

Each action is ``get``, ``flock`` or ``receive`` with the number of another actor, or ``sleep``. Prints ``ready`` once
each actor is in its action.
"""

import fcntl
import json
import os
import socket
import sys
import tempfile
import time
from typing import Any

import ray


class Player:
    def __init__(self, folder: str, number: int) -> None:
        self.folder, self.number = folder, number
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(f"{folder}/{number}")
        self.server.listen()
        self.lock = self.take_lock(number)
        self.connections: list[socket.socket] = []

    def take_lock(self, number: int) -> int:
        lock = os.open(f"{self.folder}/{number}.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock

    def connect(self, other: int) -> None:
        self.connections.append(socket.socket(socket.AF_UNIX))
        self.connections[-1].connect(f"{self.folder}/{other}")

    def accept(self) -> None:
        self.connections.append(self.server.accept()[0])

    def play(self, does: str, number: int, other: Any) -> None:
        with open(f"{self.folder}/{self.number}.began", "w"):
            pass
        if does == "get":
            ray.get(other.end.remote())
        elif does == "flock":
            self.take_lock(number)
        elif does == "receive":
            self.connections[0].recv(1)  # the one that it has made, before those that it has accepted
        else:
            time.sleep(900)

    def end(self) -> None:
        pass


def main() -> None:
    actions: list[tuple[str, int]] = json.loads(sys.argv[1])
    ray.init(os.environ["RAY_ADDRESS"])
    with tempfile.TemporaryDirectory() as folder:
        classes: list[Any] = [ray.remote(num_cpus=0)(type(f"Player{n}", (Player,), {})) for n in range(len(actions))]
        players = [one.remote(folder, number) for number, one in enumerate(classes)]
        ray.get([player.end.remote() for player in players])
        for player, (does, other) in zip(players, actions, strict=True):
            if does == "receive":
                ray.get(player.connect.remote(other))
        for _, other in [action for action in actions if action[0] == "receive"]:
            ray.get(players[other].accept.remote())
        calls = [
            player.play.remote(does, other, players[other])
            for player, (does, other) in zip(players, actions, strict=True)
        ]
        while len([name for name in os.listdir(folder) if name.endswith(".began")]) < len(actions):
            time.sleep(0.05)
        print("ready", flush=True)
        ray.get(calls)


if __name__ == "__main__":
    main()
