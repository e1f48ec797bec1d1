"""An actor that cannot restart, because its GPU was taken (as in ray#26772, ray#15437 and ray#11990).

The model dies during a call and would restart on the GPU. But another model had been waiting for the GPU and got it. It
holds the GPU for as long as the driver holds its handle, and the driver waits for the first model.

Expected: deadlock
Members: driver restart_without_room.py
Points at: print(ray.get(answer))
Next step: Add 1 GPU
"""

import os
from typing import Any

import ray


class Model:
    def answer(self) -> str:
        if not ray.get_runtime_context().was_current_actor_reconstructed:
            os._exit(1)  # out of memory
        return "42"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    own = address == "local"
    ray.init(address, num_cpus=2 if own else None, num_gpus=1 if own else None, include_dashboard=False)
    model = ray.remote(num_gpus=1, max_restarts=-1, max_task_retries=-1)(Model)
    first: Any = model.options(name="first").remote()
    ray.get(first.__ray_ready__.remote())
    second: Any = model.options(name="second").remote()
    answer = first.answer.remote()
    ray.get(second.__ray_ready__.remote())
    print("ready", flush=True)
    print(ray.get(answer))


if __name__ == "__main__":
    main()
