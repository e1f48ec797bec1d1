"""Ray Serve: a front that awaits two replicas of a model, with requests from threads, and long times without any."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from benchmarks.soak.rounds import play_for_ever


@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 0})
class Model:
    def __call__(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Front:
    def __init__(self, model: DeploymentHandle[float]) -> None:
        self.model = model

    async def __call__(self, seconds: float) -> float:
        return float(await self.model.remote(seconds))


def request_all(shop: DeploymentHandle[float]) -> None:
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            list(pool.map(lambda seconds: shop.remote(seconds).result(), [random.uniform(0, 0.2) for _ in range(8)]))
    time.sleep(1)


def main() -> None:
    ray.init(log_to_driver=False)
    play_for_ever(lambda: serve.run(Front.bind(Model.bind()), name="shop"), request_all)


if __name__ == "__main__":
    main()
