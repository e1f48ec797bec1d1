"""Random rings of calls on real Ray, of which it is known whether and when they end: exit 1 only if they never do."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.clusters.dstack_command import CHECK_PAUSE_S, Json
from tests.clusters.shared_cluster import SETTLED_S, SharedCluster
from tests.examples.expected import ALARMS
from tests.fuzzing.effort import IS_SEARCH
from tests.paths import PROGRAMS
from tests.processes import wait_until

pytestmark = pytest.mark.ray
PROGRAM = PROGRAMS / "drivers/random_rings.py"
FIRST = random.randrange(2**32) if IS_SEARCH else 0
LASTING = {
    True: ("plain", "plain", "call_later_of_note", "gather_with_calm_branch"),
    False: ("plain", "get_with_ended_task"),
}
"""The ways in which a member that is async, or one that is not, waits without an end."""
ENDING = {
    "move_on_after": True,
    "get_with_timeout": False,
    "watchdog": True,
    "call_later": True,
    "gather_with_failing_branch": True,
    "get_with_failing_task": False,
    "wait_for": True,
    "fail_after": True,
}
"""The ways in which a wait ends, and whether they are those of an async member."""
BY_DRIVER = ("has one killed", "cancels")
ENDS = ("", "move_on_after", "has one killed", "", *list(ENDING)[1:], BY_DRIVER[1], "", "")
"""What ends a ring, by its seed; nothing ends some of them."""
ENDS_S = 120.0
"""Deadline for the end of a ring, which takes up to 25 s on an idle machine."""


def random_ring(seed: int) -> dict[str, Any]:
    """The argument of the program: a ring that ends by one thing after ``seconds``, or never."""
    chance = random.Random(seed)
    kinds = chance.choices([True, False], k=chance.choice([2, 3, 4]))
    members = [[is_async, chance.choice(LASTING[is_async])] for is_async in kinds]
    end = ENDS[seed % len(ENDS)]
    if end in ENDING:
        members[chance.randrange(len(members))] = [ENDING[end], end]
    elif end == "cancels":
        members[0] = [True, chance.choice(LASTING[True])]  # Ray cancels no running call of another actor
    driver = end if end in BY_DRIVER else "waits"
    return {"members": members, "driver": driver, "seconds": chance.uniform(15.0, 25.0)}


def ends(ring: dict[str, Any]) -> bool:
    return ring["driver"] in BY_DRIVER or any(way in ENDING for _, way in ring["members"])


@pytest.mark.parametrize(
    "seed", [pytest.param(FIRST + n, marks=pytest.mark.exhaustive if n else ()) for n in range(30)]
)
def test_rings_are_a_deadlock_only_if_they_never_end(seed: int, shared: SharedCluster) -> None:
    ring = random_ring(seed)
    documents: list[Json] = []

    with shared.running(PROGRAM, [json.dumps(ring)]) as example:

        def is_settled() -> bool:
            documents.append(shared.check())
            if not ends(ring):
                return documents[-1]["verdict"] == "deadlock"
            assert documents[-1]["verdict"] not in ALARMS, f"{ring}: {documents[-1]['report']}"
            return "done" in example.output()

        wait_until(
            is_settled,
            deadline_s=ENDS_S if ends(ring) else SETTLED_S,
            what=lambda: f"{ring}: {documents[-1]['report']}",
            pause_s=CHECK_PAUSE_S,
        )
