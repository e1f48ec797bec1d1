"""A task that asks for more GPUs than any node has.

Ray keeps the task pending, in case such a node joins later.

Expected: hang (finding: infeasible)
Members: render
Points at: print(ray.get(render.remote()))
Next step: Reduce what render asks for
"""

import os

import ray


@ray.remote(num_gpus=64)
def render() -> str:
    return "frame"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    ray.init(address, num_cpus=2 if own else None, num_gpus=1 if own else None, include_dashboard=False)
    print("ready", flush=True)
    print(ray.get(render.remote()))


if __name__ == "__main__":
    main()
