"""A driver that waits for an output that a failed call never sent, and does not fetch the error of that call.

Outputs come through a queue outside of Ray, as in servers for language models. The worker's call raised an exception
before it put its output there. The driver holds the ref with the exception, and fetches it only after the output.

Expected: running (finding: failed)
Members: driver output_of_failed_call_awaited.py
Points at: print(outputs.get(), ray.get(done))
Failed before: Worker.execute_model
Outside: driver in queue.Queue.get
Next step: Correct the error of Worker.execute_model. Fetch its result together with those of the other calls
"""

import os
import queue
import threading
import time
from multiprocessing.managers import BaseManager
from typing import Any

import ray

KEY = b"example"


class Worker:
    def __init__(self, address: Any) -> None:
        class Outputs(BaseManager):
            pass

        Outputs.register("outputs")
        manager = Outputs(address, KEY)
        manager.connect()
        self.outputs = manager.outputs()  # type: ignore[attr-defined]

    def execute_model(self, batch: list[float], seconds: float) -> None:
        mean = sum(batch) / len(batch)
        time.sleep(seconds)
        self.outputs.put(mean)


def serve(outputs: Any) -> Any:
    class Outputs(BaseManager):
        pass

    Outputs.register("outputs", callable=lambda: outputs)
    server = Outputs(("127.0.0.1", 0), KEY).get_server()
    threading.Thread(target=server.serve_forever, name="outputs", daemon=True).start()
    return server.address


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    outputs: queue.Queue[float] = queue.Queue()
    worker = ray.remote(Worker).options(name="worker").remote(serve(outputs))
    ray.get(worker.__ray_ready__.remote())
    done = worker.execute_model.remote([], 900.0)
    print("ready", flush=True)
    print(outputs.get(), ray.get(done))


if __name__ == "__main__":
    main()
