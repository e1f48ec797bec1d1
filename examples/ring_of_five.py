"""A cycle of five actors, spread over the nodes, in which each waits for the next.

Each member passes a token to the next one and waits until that has done the same. The fifth passes
it to the first, which is still waiting. The members wait in different ways: three call `ray.get`,
one joins a thread that calls `ray.get`, and one calls `ray.wait` for two refs, of which one is
available.

Expected: deadlock
Members: Member.pass_token, MemberWithThread.pass_token, thread "helper", MemberWithWait.pass_token
Behind: driver ring_of_five.py
Points at: ray.wait([minutes, passed], num_returns=2)
Next step: Do not wait for thread "helper" in MemberWithThread.pass_token (return first, or await asyncio.to_thread)
"""

import os
import threading
from typing import Any

import ray


class Member:
    def sit_beside(self, neighbour: Any) -> None:
        self.neighbour = neighbour

    def pass_token(self, hops: int) -> int:
        return self.wait_for(self.neighbour.pass_token.remote(hops + 1))

    def wait_for(self, passed: "ray.ObjectRef[int]") -> int:
        return ray.get(passed)


class MemberWithThread(Member):
    def wait_for(self, passed: "ray.ObjectRef[int]") -> int:
        hops: list[int] = []
        helper = threading.Thread(target=lambda: hops.append(ray.get(passed)), name="helper")
        helper.start()
        helper.join()
        return hops[0]


class MemberWithWait(Member):
    def wait_for(self, passed: "ray.ObjectRef[int]") -> int:
        minutes = ray.put("token received")
        ray.wait([minutes, passed], num_returns=2)
        return ray.get(passed)


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    kinds = [Member, MemberWithThread, Member, MemberWithWait, Member]
    ring: list[Any] = [ray.remote(kind).options(scheduling_strategy="SPREAD").remote() for kind in kinds]
    ray.get([member.sit_beside.remote(ring[i - 4]) for i, member in enumerate(ring)])
    hops = ring[0].pass_token.remote(0)
    print("ready", flush=True)
    print(ray.get(hops))


if __name__ == "__main__":
    main()
