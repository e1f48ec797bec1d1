"""A wait for two of three results, of which only one can become available.

The chair needs two opinions of three. One member answers at once. The other two first ask the chair, which is waiting.

Expected: deadlock
Members: Chair.decide, Member.think, Chair.question
Points at: done, _ = ray.wait(opinions, num_returns=2)
Next step: Raise max_concurrency of Chair to 2 (now 1)
"""

import os
from typing import Any

import ray


class Chair:
    def question(self) -> str:
        return "more tea?"

    def decide(self, members: list[Any]) -> int:
        chair = ray.get_runtime_context().current_actor
        quick, *curious = members
        opinions = [quick.say_yes.remote(), *(member.think.remote(chair) for member in curious)]
        done, _ = ray.wait(opinions, num_returns=2)
        return len(done)


class Member:
    def say_yes(self) -> bool:
        return True

    def think(self, chair: Any) -> bool:
        question: str = ray.get(chair.question.remote())
        return question.endswith("tea?")


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    chair: Any = ray.remote(Chair).options(name="chair").remote()
    members: list[Any] = [ray.remote(Member).options(name=name).remote() for name in ("Al", "Bea", "Cy")]
    ray.get([one.__ray_ready__.remote() for one in (chair, *members)])
    decided = chair.decide.remote(members)
    print("ready", flush=True)
    print(ray.get(decided))


if __name__ == "__main__":
    main()
