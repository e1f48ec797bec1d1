"""A task whose argument is never made.

`recognise` takes the picture that `develop` makes, and `develop` asks for a resource that no node has. Ray keeps
`develop` pending in case such a node joins later. Until then `recognise` cannot start, and the driver waits.

Expected: hang (finding: infeasible)
Members: develop
Behind: driver argument_never_comes.py
Points at: print(ray.get(caption))
Next step: Reduce what develop asks for
"""

import os

import ray


@ray.remote(resources={"darkroom": 1})
def develop(film: str) -> bytes:
    return film.encode()


@ray.remote
def recognise(picture: bytes) -> str:
    return f"{len(picture)} bytes of holiday"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    caption = recognise.remote(develop.remote("roll 7"))
    print("ready", flush=True)
    print(ray.get(caption))


if __name__ == "__main__":
    main()
