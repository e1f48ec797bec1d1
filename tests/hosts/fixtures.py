"""Fixtures around :class:`Hosts`, for every test that needs really separate hosts."""

import os
from collections.abc import Iterator

import pytest

from tests.hosts.hosts import Hosts

REQUIRE = "DSTACK_REQUIRE_HOSTS"


@pytest.fixture(scope="session")
def hosts_possible() -> None:
    """Skips where no hosts can be made, saying why; with ``DSTACK_REQUIRE_HOSTS=1`` fails instead."""
    reason = Hosts.unavailable()
    if reason is None:
        return
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{REQUIRE}=1, but separate hosts cannot be made here: {reason}")
    pytest.skip(f"separate hosts cannot be made here: {reason}")


@pytest.fixture(scope="session")
def three_hosts(hosts_possible: None) -> Iterator[Hosts]:
    """Three hosts, shared by all tests on hosts, which must leave them alive and plugged in."""
    with Hosts(3) as hosts:
        yield hosts
