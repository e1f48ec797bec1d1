"""A wait for the first of two results, when neither can become available.

The traveller asks train and bus and takes the first answer. Both ask the traveller for the destination first, so one
answer would be enough, but there is none.

Expected: deadlock
Members: Traveller.go, Carrier.offer, Traveller.destination
Points at: first, _ = ray.wait([carrier.offer.remote(me) for carrier in carriers])
Next step: Raise max_concurrency of Traveller to 2 (now 1)
"""

import os
from typing import Any

import ray


class Traveller:
    def destination(self) -> str:
        return "Rome"

    def go(self, carriers: list[Any]) -> str:
        me = ray.get_runtime_context().current_actor
        first, _ = ray.wait([carrier.offer.remote(me) for carrier in carriers])
        return ray.get(first[0])


class Carrier:
    def offer(self, traveller: Any) -> str:
        destination: str = ray.get(traveller.destination.remote())
        return f"to {destination}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    traveller: Any = ray.remote(Traveller).options(name="traveller").remote()
    carriers: list[Any] = [ray.remote(Carrier).options(name=name).remote() for name in ("train", "bus")]
    ray.get([one.__ray_ready__.remote() for one in (traveller, *carriers)])
    offer = traveller.go.remote(carriers)
    print("ready", flush=True)
    print(ray.get(offer))


if __name__ == "__main__":
    main()
