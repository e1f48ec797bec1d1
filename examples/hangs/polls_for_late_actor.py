"""A driver that polls for an actor's call, while the actors that it keeps hold all CPUs.

The loop only polls.

Expected: deadlock
Members: driver polls_for_late_actor.py
Points at: done, _ = ray.wait([song], timeout=0.5)
Next step: Set num_cpus=0 for actor Player, or start fewer of them
"""

import os
from typing import Any

import ray


class Player:
    def play(self) -> str:
        return "song"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    players: list[Any] = [ray.remote(Player).options(num_cpus=1, name=f"player {i}").remote() for i in range(2)]
    ray.get([player.play.remote() for player in players])
    late: Any = ray.remote(Player).options(num_cpus=1, name="late").remote()
    song = late.play.remote()
    print("ready", flush=True)
    while True:
        done, _ = ray.wait([song], timeout=0.5)
        if done:
            break
    print(ray.get(song))


if __name__ == "__main__":
    main()
