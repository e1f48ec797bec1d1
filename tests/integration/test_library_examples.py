"""Every program that needs Ray Data, Serve, Train or Tune gets the verdict of its docstring.

Each has its own cluster, since these libraries leave detached actors behind.
"""

import psutil
import pytest

from tests.clusters.dstack_command import Json
from tests.clusters.shared_cluster import shared_cluster
from tests.examples.expected import ALARMS, expected_of
from tests.examples.recorded import NAMES
from tests.paths import EXAMPLES

pytestmark = [pytest.mark.ray, pytest.mark.libraries]

TIMES = 10
"""How often a look-alike is checked once it has settled."""

PROGRAMS = [name for name in NAMES if "libraries" in name.split("/")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_library_program_gets_its_expected_verdict(name: str) -> None:
    expected = expected_of(EXAMPLES / f"{name}.py")
    checks: list[Json] = []

    with shared_cluster(nodes=1, num_cpus=2) as shared, shared.cluster.run_example(name) as example:
        shared.settled(expected, observe=checks.append)
        if expected.verdict not in ALARMS:
            checks += [shared.check() for _ in range(TIMES)]
        assert psutil.Process(example.pid).status() != psutil.STATUS_ZOMBIE, example.output()

    assert not [check for check in checks if expected.is_denied_by(check)]
