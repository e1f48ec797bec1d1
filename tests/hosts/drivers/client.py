"""Two actors of a Ray Client that wait for each other for ever: client.py URL. Prints `ready` after the first call."""

import sys
from typing import Any

import ray


class Member:
    def meet(self, following: Any) -> None:
        self.following = following

    def pass_token(self) -> None:
        ray.get(self.following.pass_token.remote())


def connect(url: str, attempts: int = 3) -> None:
    """Connect, and retry if the server did not start in time, as on a busy machine."""
    for attempt in range(1, attempts + 1):
        try:
            ray.init(url)
            return
        except ConnectionError:
            if attempt == attempts:
                raise


def main() -> None:
    connect(sys.argv[1])
    kind: Any = ray.remote(Member)
    members = [kind.remote() for _ in range(2)]
    ray.get([member.meet.remote(members[i - 1]) for i, member in enumerate(members)])
    token = members[0].pass_token.remote()
    print("ready", flush=True)
    ray.get(token)


if __name__ == "__main__":
    main()
