"""Check a deadlock on a Ray cluster that has only an IPv6 address, and print the document as JSON.

Run it as root under ``unshare --net``: the loopback device of that network namespace gets the address.
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
        document = settled_check(cluster.address, cluster.environment, lambda one: one["verdict"] == "deadlock")
        auto = dstack("check", "--address", "auto", environment=cluster.environment)
    print(json.dumps({"address": cluster.address, "document": document, "auto": auto.returncode}))


if __name__ == "__main__":
    main()
