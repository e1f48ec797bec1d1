"""A method that joins a thread, which waits for a call that needs the same actor.

The camera lets a thread wait for the flash, and then joins that thread. The flash asks the camera for the exposure
time, but the camera is busy.

Expected: deadlock
Members: Camera.shoot, thread "flash", Flash.fire, Camera.exposure
Points at: waiting.join()
Next step: Raise max_concurrency of Camera to 2 (now 1)
"""

import os
import threading
from typing import Any

import ray


class Camera:
    def exposure(self) -> float:
        return 0.01

    def shoot(self, flash: Any) -> None:
        fired = flash.fire.remote(ray.get_runtime_context().current_actor)
        waiting = threading.Thread(target=ray.get, args=(fired,), name="flash")
        waiting.start()
        waiting.join()


class Flash:
    def fire(self, camera: Any) -> float:
        exposure: float = ray.get(camera.exposure.remote())
        return exposure


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    camera: Any = ray.remote(Camera).options(name="camera").remote()
    flash: Any = ray.remote(Flash).options(name="flash").remote()
    ray.get([camera.__ray_ready__.remote(), flash.__ray_ready__.remote()])
    shot = camera.shoot.remote(flash)
    print("ready", flush=True)
    print(ray.get(shot))


if __name__ == "__main__":
    main()
