"""An async actor that takes one item of a stream, and then awaits another method of the stream's actor.

The stream may run two items ahead, then its producer waits until one is taken. The camera runs one call at a time, so
`settings` is queued behind the stream, which the viewer does not read meanwhile.

Expected: deadlock
Members: Viewer.watch, Camera.frames, Camera.settings, driver async_consumer_of_stream.py
Points at: settings: int = await camera.settings.remote()
Next step: Read the stream of Camera.frames to its end before waiting for anything else
"""

import os
from collections.abc import Iterator
from typing import Any

import ray


class Camera:
    def frames(self) -> Iterator[int]:
        for frame in range(100):
            yield frame * frame

    def settings(self) -> int:
        return 25


class Viewer:
    async def watch(self, camera: Any) -> int:
        frames = camera.frames.options(num_returns="streaming", _generator_backpressure_num_objects=2).remote()
        first: int = await (await anext(frames))
        settings: int = await camera.settings.remote()
        return first + settings


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    camera: Any = ray.remote(Camera).options(name="camera").remote()
    viewer: Any = ray.remote(Viewer).options(name="viewer").remote()
    ray.get([camera.__ray_ready__.remote(), viewer.__ray_ready__.remote()])
    watched = viewer.watch.remote(camera)
    print("ready", flush=True)
    print(ray.get(watched))


if __name__ == "__main__":
    main()
