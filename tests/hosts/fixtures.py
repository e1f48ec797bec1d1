"""Fixtures with :class:`Hosts` for tests that need separate hosts."""

import os
from collections.abc import Iterator

import pytest

from tests.hosts.hosts import Hosts

REQUIRE = "DSTACK_REQUIRE_HOSTS"


@pytest.fixture(scope="session")
def hosts_possible() -> None:
    """Skip with a reason if hosts cannot be made; with ``DSTACK_REQUIRE_HOSTS=1`` fail instead."""
    reason = Hosts.unavailable()
    if reason is None:
        return
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{REQUIRE}=1, but separate hosts cannot be made here: {reason}")
    pytest.skip(f"separate hosts cannot be made here: {reason}")


@pytest.fixture(scope="session")
def three_hosts(hosts_possible: None) -> Iterator[Hosts]:
    """Three hosts shared by all tests, which must leave them alive and connected."""
    with Hosts(3) as hosts:
        yield hosts
