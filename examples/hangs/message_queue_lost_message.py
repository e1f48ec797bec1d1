"""A driver and a worker wait for each other's message in ZeroMQ: the command was sent before the worker subscribed.

Expected: stalled
Members: Engine.run, driver message_queue_lost_message.py
Points at: print(answers.recv_string())
Next step: waits in Socket.recv_string of zmq, which its other side has to end
"""

import os
from typing import Any

import ray
import zmq


class Engine:
    def run(self, commands: str, answers: str) -> None:
        context = zmq.Context()
        subscribed, sending = context.socket(zmq.SUB), context.socket(zmq.PUSH)
        sending.connect(answers)
        subscribed.setsockopt(zmq.SUBSCRIBE, b"")
        subscribed.connect(commands)
        sending.send_string("started")
        while True:
            sending.send_string(subscribed.recv_string())


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    context = zmq.Context()
    commands, answers = context.socket(zmq.PUB), context.socket(zmq.PULL)
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (commands, answers)]
    commands.send_string("step 1")  # nothing has subscribed yet, so it is lost
    engine: Any = ray.remote(Engine).options(num_cpus=0).remote()
    loop = engine.run.remote(*(f"tcp://127.0.0.1:{port}" for port in ports))
    print(answers.recv_string())
    print("ready", flush=True)
    print(answers.recv_string())
    ray.get(loop)


if __name__ == "__main__":
    main()
