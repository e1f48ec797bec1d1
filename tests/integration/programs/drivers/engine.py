"""An actor that asks an engine, a process of its own, over a pipe and never gets an answer; its driver has one, too."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from typing import Any

import ray


def serve(requests: Any, answers: Any) -> None:
    """The engine: answers the first request, and then is stuck in itself."""
    answers.send(os.getpid())
    requests.recv()
    time.sleep(100_000)


class Server:
    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        requests, self.requests = context.Pipe(duplex=False)
        self.answers, answers = context.Pipe(duplex=False)
        self.engine = context.Process(target=serve, args=(requests, answers), daemon=True)
        self.engine.start()
        requests.close()
        answers.close()

    def start(self) -> tuple[int, int]:
        return os.getpid(), self.answers.recv()

    def ask(self) -> Any:
        self.requests.send("question")
        return self.answers.recv()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    helper = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(100_000,), daemon=True)
    helper.start()
    threading.Thread(target=helper.join, name="joins", daemon=True).start()
    server: Any = ray.remote(num_cpus=0)(Server).options(name="server").remote()
    worker, engine = ray.get(server.start.remote())
    pids = {"driver": os.getpid(), "helper": helper.pid, "worker": worker, "engine": engine}
    print(json.dumps(pids), flush=True)
    asked = server.ask.remote()
    print("ready", flush=True)
    ray.get(asked)


if __name__ == "__main__":
    main()
