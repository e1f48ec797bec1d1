"""Waits for room in a full object store on real Ray, and who holds its bytes."""

import json
from collections.abc import Iterator

import pytest

from dstack.call_sites import RAY_PUT, RAY_RETURN
from tests.clusters.dstack_command import Json, dstack, settled_check
from tests.clusters.ray_clusters import Example, run_example
from tests.paths import PROGRAMS

pytestmark = [pytest.mark.ray, pytest.mark.exhaustive]

MIB = 1 << 20
PROGRAM = PROGRAMS / "drivers/full_store.py"


@pytest.fixture(scope="module")
def program() -> Iterator[Example]:
    with run_example(PROGRAM) as running:
        yield running


def waits_in(document: Json, name: str) -> bool:
    texts = [finding["summary"] + json.dumps(finding["members"]) for finding in document["findings"]]
    return any(name in text for text in (*texts, json.dumps(document)))


def test_a_put_and_a_return_wait_for_room(program: Example) -> None:
    def is_settled(document: Json) -> bool:
        return waits_in(document, RAY_PUT.name) and waits_in(document, RAY_RETURN.name)

    document = settled_check(program.address, program.environment, is_settled)

    assert document["exit_code"] != 1
    text = dstack("check", "--address", program.address, environment=program.environment).stdout
    assert "Object store: 95 MiB used of 100 MiB; kept by actor Keeper: 80 MiB in 4 objects, 80 MiB" in text


def test_the_listing_has_every_value_with_its_owner_and_place(program: Example) -> None:
    done = dstack("memory", "--address", program.address, "--json", environment=program.environment)

    document = json.loads(done.stdout)
    (store,) = document["nodes"]
    assert (store["total_bytes"], store["used_bytes"] > 90 * MIB) == (100 * MIB, True)
    of_keeper = [one for one in document["objects"] if one["made_by"] == "ray.put in actor Keeper"]
    assert [one["bytes"] // MIB for one in of_keeper] == [20] * 4
    assert all(one["node_ids"] == [store["node_id"]] and not one["is_spilled"] for one in of_keeper)
    assert all(any(use["is_in_use"] for use in one["uses"]) for one in of_keeper)
    assert any(one["is_spilled"] for one in document["objects"] if one["made_by"].startswith("ray.put in driver"))
    shares = {one["name"]: one for one in document["kept_by"]}
    assert shares["actor Keeper"]["bytes_in_use"] // MIB == 80
