"""A driver that polls for an actor's call, while the actors that it keeps hold all CPUs, up to a deadline.

At the deadline it releases these actors, and the late one starts.

Expected: running (finding: starved)
Next step: End actor Player "player 0" or actor Player "player 1" if nothing needs it any more
"""

import os
import time
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
    deadline = time.monotonic() + 900.0
    while time.monotonic() < deadline:
        done, _ = ray.wait([song], timeout=0.5)
        if done:
            break
    players.clear()
    print(ray.get(song))


if __name__ == "__main__":
    main()
