"""A ring of actors, each of which waits for the next for ever: ring.py [--idle NODE_ID] [--queued TASKS] NODE_ID...

Starts one member for each NODE_ID, each with its own CPU, and with --idle one more idle actor. Prints `ready` after the
call of the first member.
"""

import argparse
import sys
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


class Member:
    def meet(self, following: Any) -> None:
        self.following = following

    def pass_token(self) -> None:
        print("the token is passed on; password=s3cr3t", file=sys.stderr)
        ray.get(self.following.pass_token.remote())


class Bystander:
    pass


@ray.remote
def queued() -> None:
    pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--idle")
    parser.add_argument("--queued", type=int, default=0)
    parser.add_argument("nodes", nargs="+")
    arguments = parser.parse_args()
    ray.init(log_to_driver=False)
    members = [actor_on(node, Member) for node in arguments.nodes]
    others = [actor_on(arguments.idle, Bystander)] if arguments.idle else []
    ray.get([member.meet.remote(members[i - 1]) for i, member in enumerate(members)])
    ray.get([other.__ray_ready__.remote() for other in others])
    tasks = [queued.remote() for _ in range(arguments.queued)]
    token = members[0].pass_token.remote()
    print("ready", flush=True)
    ray.get([token, *tasks])


def actor_on(node: str, kind: type) -> Any:
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    actor: Any = ray.remote(kind).options(num_cpus=1, scheduling_strategy=place)
    return actor.remote()


if __name__ == "__main__":
    main()
