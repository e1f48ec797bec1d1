"""A pipeline on two nodes that piles up documents before its GPU step, while the other node has a GPU free.

Each document is downloaded, analysed on a GPU, summarised by a language model, and written. The first node keeps the
downloads, so the downloads and the analysis were pinned to it. The second node has access to the model, and a GPU that
nothing uses, because the analysis may not run there. (Ray counts GPUs as slots; no real GPU is needed.)

With the argument `unpinned` the analysis runs wherever a GPU is free, and a batch takes about half the time.

Needs: two sites
Expected: running (finding: starved)
Members: driver document_pipeline.py, write
Points at: time.sleep(1.5)
"""

import os
import sys
import time
from typing import Any

import ray
from ray.cluster_utils import Cluster

BATCH = 10
SITES = ({"site_a": 100}, {"site_b": 100, "model_access": 2})
PINNED = {"site_a": 1.0}


@ray.remote(num_cpus=0, resources={"site_a": 1})
def download(number: int) -> list[int]:
    time.sleep(0.3)
    return [number] * 100


@ray.remote(num_cpus=0, num_gpus=1, max_calls=0)
def analyse(page: list[int]) -> list[int]:
    time.sleep(1.5)
    return page


@ray.remote(num_cpus=0, resources={"model_access": 1})
def summarise(page: list[int]) -> str:
    time.sleep(1.0)
    return f"summary of {page[0]}"


@ray.remote(num_cpus=0, resources={"site_b": 1})
def write(summary: str) -> int:
    time.sleep(0.1)
    return len(summary)


def through_all_steps(number: int, place: dict[str, float]) -> Any:
    page = analyse.options(resources=place).remote(download.remote(number))
    return write.remote(summarise.remote(page))


def join_or_make() -> None:
    """Joins a cluster, or makes one of both sites, the second at another address of this machine."""
    if "RAY_ADDRESS" in os.environ:
        ray.init(os.environ["RAY_ADDRESS"], include_dashboard=False)
        return
    node = {"num_cpus": 2, "num_gpus": 1, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, connect=True, head_node_args={**node, "resources": SITES[0]})
    cluster.add_node(**node, resources=SITES[1], node_ip_address="127.0.0.2")


def main() -> None:
    join_or_make()
    place = {} if "unpinned" in sys.argv else PINNED
    for batch in range(1, 10_000):
        began = time.monotonic()
        documents = [through_all_steps(number, place) for number in range(BATCH)]
        if batch == 1:
            print("ready", flush=True)
        ray.get(documents)
        print(f"batch {batch}: {BATCH} documents in {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
