"""Tasks, actors and placement groups that need the resource of one host, which may be lost until another replaces it.

The hosts of the soak have a resource each, as `rack2`; a host that replaces another has its resource.
"""

import random
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0, max_retries=-1)
def visit(*others: int) -> int:
    return 1 + sum(others)


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Watcher:
    def visit(self) -> int:
        return 1


Team = tuple[list[str], list[Any]]


def watchers() -> Team:
    racks = sorted(name for name in ray.cluster_resources() if name.startswith("rack"))
    assert racks, "no host has a rack"
    return racks, [Watcher.options(resources={rack: 0.1}).remote() for rack in racks]


def visit_all(team: Team) -> None:
    racks, actors = team
    visits = [visit.options(resources={rack: 0.1}).remote() for rack in racks]
    assert ray.get(visit.options(resources={random.choice(racks): 0.2}).remote(*visits)) == 1 + len(racks)
    assert sum(ray.get([actor.visit.remote() for actor in actors])) == len(actors)
    reserve(random.sample(racks, min(2, len(racks))))


def reserve(racks: list[str]) -> None:
    """Hold a group on one rack while another, on several, is made."""
    groups: list[PlacementGroup] = []
    try:
        for wanted in (racks[:1], racks):
            groups.append(placement_group([{rack: 0.1} for rack in wanted]))
            ray.get(groups[-1].ready())
    finally:
        for group in groups:
            remove_placement_group(group)


def main() -> None:
    ray.init()
    play_for_ever(watchers, visit_all)


if __name__ == "__main__":
    main()
