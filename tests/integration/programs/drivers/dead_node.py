"""A driver that waits for what was on a node that has left, and for an impossible task whose owner may be stopped.

Prints ``dead PID`` of a worker that has died, and ``owner PID`` of the process that owns the task.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.cluster_utils import Cluster

SPECIAL = {"special": 0.1}


class Actor:
    def pid(self) -> int:
        return os.getpid()

    def work(self) -> None:
        time.sleep(10_000)

    def submit(self) -> list[Any]:
        self.kept = [ray.remote(num_cpus=0, resources={"nowhere": 1})(never).remote()]
        return self.kept


def never() -> None:
    pass


def load() -> bytes:
    return b"x" * 1_000_000


def waits(name: str, call: Callable[[], Any]) -> None:
    threading.Thread(target=call, name=name, daemon=True).start()


def main() -> None:
    cluster: Any = Cluster()
    cluster.add_node(num_cpus=2, resources={"home": 1}, include_dashboard=False, dashboard_agent_listen_port=0)
    ray.init(cluster.address)  # while there is one node, so that it is not the driver's that leaves
    leaving = cluster.add_node(
        num_cpus=1, resources={"special": 1}, include_dashboard=False, dashboard_agent_listen_port=0
    )
    cluster.wait_for_nodes()
    actor: Any = ray.remote(num_cpus=0)(Actor)
    restarted = actor.options(resources=SPECIAL, max_restarts=-1, max_task_retries=-1).remote()
    left, owner = actor.options(resources=SPECIAL).remote(), actor.options(resources={"home": 1}).remote()
    print("dead", ray.get(left.pid.remote()))
    print("owner", ray.get(owner.pid.remote()))
    value = ray.remote(num_cpus=0, resources=SPECIAL)(load).remote()
    ray.wait([value], fetch_local=False)
    ray.get(restarted.pid.remote())
    call, (borrowed,) = restarted.work.remote(), ray.get(owner.submit.remote())
    cluster.remove_node(leaving)
    waits("restarted", lambda: ray.get(call))
    waits("lost", lambda: ray.get(value))
    waits("borrowed", lambda: ray.get(borrowed))
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
