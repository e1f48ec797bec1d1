"""A healthy job: 40 actors play for minutes, and several tasks that score their games end every second.

Expected: running
Members: driver busy_actors.py
Points at: time.sleep(random.uniform(5.0, 10.0))
"""

import os
import random
import time
from typing import Any

import ray

ACTORS, GAMES = 40, 200


@ray.remote(num_cpus=0.01)
def score(game: int) -> float:
    time.sleep(0.2)
    return 1.0 / game


class Rollout:
    def play(self, games: int) -> float:
        scores = []
        for game in range(1, games):
            time.sleep(random.uniform(5.0, 10.0))
            scores.append(score.remote(game))
        return sum(ray.get(scores))


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    rollout: Any = ray.remote(num_cpus=0)(Rollout)
    actors = [rollout.remote() for _ in range(ACTORS)]
    ray.get([actor.__ray_ready__.remote() for actor in actors])
    results = [actor.play.remote(GAMES) for actor in actors]
    ray.wait(results, timeout=15.0)  # the first games have ended, and are scored
    print("ready", flush=True)
    print(sum(ray.get(results)))


if __name__ == "__main__":
    main()
