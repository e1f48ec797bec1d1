"""Checks a deadlock on a Ray cluster that has only an IPv6 address, and prints what was reported as JSON.

To be run as root in a network namespace of its own, ``unshare --net``, whose loopback device gets that address.
"""

import json
import subprocess

from tests.clusters.dstack_command import dstack, settled_check
from tests.clusters.ray_clusters import ray_cluster

ADDRESS = "fd00::1"


def main() -> None:
    for command in (["link", "set", "lo", "up"], ["addr", "add", f"{ADDRESS}/64", "dev", "lo", "nodad"]):
        subprocess.run(["ip", *command], check=True)
    with ray_cluster(2, num_cpus=2, ip=ADDRESS, auth="off") as cluster, cluster.run_example("two_actors"):
        told = settled_check(cluster.address, cluster.environment, lambda told: told["verdict"] == "deadlock")
        auto = dstack("check", "--address", "auto", environment=cluster.environment)
    print(json.dumps({"address": cluster.address, "told": told, "auto": auto.returncode}))


if __name__ == "__main__":
    main()
