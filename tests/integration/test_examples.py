"""Every example is explained as its docstring expects, on real Ray, and no look-alike is ever called a deadlock."""

from collections.abc import Iterator

import pytest

from tests.clusters import EXAMPLES
from tests.command import check
from tests.expected import ALARMS, expected_of
from tests.shared_cluster import SharedCluster, shared_cluster

pytestmark = pytest.mark.ray

TIMES = 10

PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if not path.stem.startswith("test_"))
EXPECTED = {path.stem: expected_of(path) for path in PROGRAMS}
STUCK = [name for name, expected in EXPECTED.items() if expected.verdict in ALARMS]
FREE = [name for name in EXPECTED if name not in STUCK]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SharedCluster]:
    with shared_cluster(nodes=1, num_cpus=2, num_gpus=1) as running:
        yield running


@pytest.mark.parametrize("name", STUCK)
def test_a_hang_is_found_and_explained(name: str, cluster: SharedCluster) -> None:
    expected = EXPECTED[name]

    with cluster.running(name):
        told = cluster.settled(expected)

    (finding,) = told["findings"]
    assert {member["execution"] for member in finding["members"]} == expected.members
    assert all(one["evidence"] == "exact" for member in finding["members"] for one in member["waits_for"])


@pytest.mark.parametrize("name", FREE)
def test_a_look_alike_is_never_called_a_hang(name: str, cluster: SharedCluster) -> None:
    with cluster.running(name):
        settled = cluster.settled(EXPECTED[name])
        verdicts = [cluster.look()["verdict"] for _ in range(TIMES)]

    assert len(settled["findings"]) == 1
    assert set(verdicts) == {"blocked"}


@pytest.mark.parametrize(("name", "exit_code"), [("two_actors", 1), ("slow_actor_queue", 0)])
def test_the_exit_code_tells(name: str, exit_code: int, cluster: SharedCluster) -> None:
    with cluster.running(name) as example:
        cluster.settled(EXPECTED[name])

        assert check(example.address, example.environment)["exit_code"] == exit_code
