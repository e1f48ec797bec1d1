"""Run a probe's actor on the only node of a cluster and print what it answers: ask_probe_actor.py ADDRESS IDLE_S

Prints one JSON object: ``packed_bytes``, the packed answer's size; ``answer``, decoded; ``direct``, the replies of the
same core workers to requests from here; ``actor_pid``. Then waits until the actor has ended, and prints ``ended`` with
the name of the error that a call raises.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import msgspec
import psutil
import ray

from dstack.probes.connection.connect import connect
from dstack.probes.node.probe_actor import ProbeActor
from dstack.probes.node.wire import NodeRequest
from dstack.probes.node_access.answers import unpacked
from dstack.probes.node_access.remote_driver import pickle_by_value
from dstack.probes.node_access.targets import targets
from dstack.probes.ray_state.control_plane import PROBE_NAMESPACE, take_inventory
from dstack.probes.ray_state.workers import ask_core_workers, core_workers, questions

TIMEOUT_S = 60.0


def main() -> None:
    address, idle_s = sys.argv[1], float(sys.argv[2])
    cluster = connect(address)
    workers = take_inventory(cluster, TIMEOUT_S).workers
    asked = questions(cluster.metadata, TIMEOUT_S)
    request: NodeRequest = {
        "nodes": [],
        "is_first": True,
        "workers": core_workers(workers),
        "questions": asked,
        "targets": targets(workers),
        "options": {
            "native": False,
            "locals": False,
            "pause": False,
            "children": True,
            "reach": True,
            "deadline_s": TIMEOUT_S,
            "setups_of": [],
        },
    }
    ray.init(address, namespace=PROBE_NAMESPACE, log_to_driver=False, logging_level="ERROR")
    pickle_by_value()
    before = actor_pids()
    actor: Any = ray.remote(ProbeActor).options(num_cpus=0).remote(idle_s=idle_s)
    data: bytes = ray.get(actor.sample.remote(request))
    (pid,) = actor_pids() - before
    answer, direct = unpacked(data), ask_core_workers(workers, asked, time.monotonic() + 30.0)[0]
    found = {"packed_bytes": len(data), "answer": answer, "direct": direct, "actor_pid": pid}
    print("answered", msgspec.json.encode(found).decode(), flush=True)
    while psutil.pid_exists(pid):
        time.sleep(0.1)
    try:
        ray.get(actor.needs_pyspy_for.remote())
    except Exception as error:
        print("ended", type(error).__name__, flush=True)


def actor_pids() -> set[int]:
    return {process.pid for process in psutil.process_iter() if is_actor(process)}


def is_actor(process: psutil.Process) -> bool:
    try:
        return bool(process.cmdline()) and process.cmdline()[0].startswith("ray::ProbeActor")
    except psutil.Error:
        return False


if __name__ == "__main__":
    main()
