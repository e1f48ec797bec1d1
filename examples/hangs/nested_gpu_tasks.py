"""A task on the only GPU that waits for another task on a GPU (as in ray#5790).

A task that waits releases its CPU, so the same program proceeds without GPUs. It keeps its GPU, because the memory
there is still in use. (Ray counts GPUs as slots; no real GPU is needed.)

Expected: deadlock
Members: train, evaluate
Points at: score: float = ray.get(evaluate.remote(0.5))
Next step: Add 1 GPU
"""

import os

import ray


@ray.remote(num_gpus=1)
def evaluate(weight: float) -> float:
    return weight / 2


@ray.remote(num_gpus=1)
def train() -> float:
    score: float = ray.get(evaluate.remote(0.5))
    return score


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    ray.init(address, num_cpus=2 if own else None, num_gpus=1 if own else None, include_dashboard=False)
    score = train.remote()
    print("ready", flush=True)
    print(ray.get(score))


if __name__ == "__main__":
    main()
