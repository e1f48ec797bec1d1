"""A cycle of three actors, two of which are asynchronous but run one call at a time.

The desk awaits the archive, the archive gets a file from the courier, and the courier awaits the permit, for which the
desk has no free slot. Only the wait of the archive is on a thread; the others are coroutines.

Expected: deadlock
Members: Desk.lend, Archive.find, Courier.fetch
Behind: driver sync_and_async_ring.py
Points at: permit = await desk.permit.remote()
Next step: Raise max_concurrency of Desk to 2 (now 1)
"""

import os
from typing import Any

import ray


class Desk:
    async def permit(self) -> str:
        return "permit"

    async def lend(self, archive: Any, courier: Any) -> str:
        me = ray.get_runtime_context().current_actor
        return str(await archive.find.remote(courier, me))


class Archive:
    def find(self, courier: Any, desk: Any) -> str:
        file: str = ray.get(courier.fetch.remote(desk))
        return file


class Courier:
    async def fetch(self, desk: Any) -> str:
        permit = await desk.permit.remote()
        return f"file for {permit}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    desk: Any = ray.remote(Desk).options(name="desk", max_concurrency=1).remote()
    archive: Any = ray.remote(Archive).options(name="archive", num_cpus=0).remote()
    courier: Any = ray.remote(Courier).options(name="courier", max_concurrency=1).remote()
    ray.get([one.__ray_ready__.remote() for one in (desk, archive, courier)])
    lent = desk.lend.remote(archive, courier)
    print("ready", flush=True)
    print(ray.get(lent))


if __name__ == "__main__":
    main()
