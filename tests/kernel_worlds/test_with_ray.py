"""Random actors that wait for each other by ray.get, file locks and sockets, on a real cluster."""

from __future__ import annotations

import json
import random

import pytest

from tests.clusters.dstack_command import Json
from tests.clusters.shared_cluster import SETTLED_S, SharedCluster
from tests.fuzzing.effort import IS_SEARCH, tries
from tests.paths import PROGRAMS
from tests.processes import wait_until

pytestmark = pytest.mark.ray
PROGRAM = PROGRAMS / "drivers/random_players.py"
Actions = list[tuple[str, int]]
FIRST = random.randrange(2**32) if IS_SEARCH else 0
CHECKS = 3
"""The checks of actors of which some can move."""


def random_actions(seed: int) -> Actions:
    """What each of a few actors does: it waits for another one, or sleeps."""
    chance = random.Random(seed)
    count = chance.choice([2, 3, 4])
    moving = chance.choice([0.0, 0.25])
    others = [chance.choice([other for other in range(count) if other != number]) for number in range(count)]
    kinds = ["sleep" if chance.random() < moving else chance.choice(["get", "flock", "receive"]) for _ in others]
    return list(zip(kinds, others, strict=True))


def stuck(actions: Actions) -> set[int]:
    """The actors that can never proceed: what they wait for leads to none that sleeps."""
    moving = {number for number, (does, _) in enumerate(actions) if does == "sleep"}
    while new := {number for number, (_, other) in enumerate(actions) if other in moving} - moving:
        moving |= new
    return set(range(len(actions))) - moving


def claimed(document: Json) -> set[int]:
    """The actors whose calls are reported as stuck."""
    findings = [one for one in document["findings"] if one["kind"] in ("deadlock", "orphaned", "infeasible")]
    names = {one["execution"] for finding in findings for one in (*finding["members"], *finding["blocked_behind"])}
    return {int(name.removeprefix("Player").partition(".")[0]) for name in names if name.startswith("Player")}


@pytest.mark.parametrize("seed", range(FIRST, FIRST + tries(30)))
def test_actors_are_stuck_only_if_no_other_can_move(seed: int, shared: SharedCluster) -> None:
    actions = random_actions(seed)
    documents: list[Json] = []

    def is_settled() -> bool:
        documents.append(shared.check())
        assert claimed(documents[-1]) <= stuck(actions), actions
        if len(stuck(actions)) == len(actions):
            return documents[-1]["verdict"] in ("deadlock", "hang", "stalled")
        assert documents[-1]["verdict"] != "stalled", actions
        return len(documents) == CHECKS

    with shared.running(PROGRAM, [json.dumps(actions)]):
        wait_until(is_settled, deadline_s=SETTLED_S, what=lambda: f"{actions}: {documents[-1]['report']}")
