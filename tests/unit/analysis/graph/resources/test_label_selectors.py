"""Label selectors, and actors that no node can hold because of its labels."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dstack.analysis.graph.resources.label_selectors import match as labels_match
from tests.unit.analysis.graph.resources.resource_requests import never
from tests.unit.scenes import Scene


@pytest.mark.parametrize(
    ("selector", "is_there"),
    [
        ({"zone": "a"}, True),
        ({"zone": "b"}, False),
        ({"zone": "!b"}, True),
        ({"zone": "in(a, b)"}, True),
        ({"zone": "!in(a,b)"}, False),
        ({"rack": "!1"}, True),
        ({"rack": "1"}, False),
        ({"zone": "a", "rack": "1"}, False),
    ],
)
def test_label_selectors(selector: dict[str, str], is_there: bool) -> None:
    assert labels_match(selector, {"zone": "a"}) is is_there


def test_an_actor_that_asks_for_absent_labels_is_infeasible() -> None:
    scene = Scene()
    driver = scene.driver()
    actor, creation = scene.pending_actor("Trainer", by=driver, CPU=1.0)
    creation.becomes(state="PENDING_NODE_ASSIGNMENT")
    scene.actors[-1] = replace(actor, label_selector={"zone": "b"})

    assert never(scene, creation.key) == "asks for 1 CPU, but no node with that has the labels zone: b"
