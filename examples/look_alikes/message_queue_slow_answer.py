"""The same with a worker that has received the command and works on it, while heartbeats are exchanged.

Expected: running
Members: driver message_queue_slow_answer.py
"""

import os
import time
from typing import Any

import ray
import zmq


class Engine:
    def run(self, commands: str) -> None:
        socket = zmq.Context().socket(zmq.REP)
        socket.setsockopt(zmq.HEARTBEAT_IVL, 200)
        socket.connect(commands)
        command = socket.recv()
        time.sleep(900)
        socket.send(command)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    socket = zmq.Context().socket(zmq.REQ)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 200)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    engine: Any = ray.remote(Engine).options(num_cpus=0).remote()
    loop = engine.run.remote(f"tcp://127.0.0.1:{port}")
    socket.send(b"step 1")
    print("ready", flush=True)
    print(socket.recv())
    ray.get(loop)


if __name__ == "__main__":
    main()
