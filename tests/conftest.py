"""What every test may ask for, how random examples are chosen, and what runs side by side."""

import os

import pytest
from hypothesis import settings

from tests.hosts.fixtures import hosts_possible, three_hosts

__all__ = ["hosts_possible", "three_hosts"]

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=5_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))

SIDE_BY_SIDE = ("hosts", "ray")
"""Marks of the tests that start Ray: with ``-n 2 --dist loadgroup`` one of each runs at a time, and is begun first."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tells pytest-xdist which tests to keep in one process: those that start the same, and those of one file."""
    groups = {item: _group(item) for item in items}
    items.sort(key=lambda item: groups[item] not in SIDE_BY_SIDE)
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))


def _group(item: pytest.Item) -> str:
    return next((mark for mark in SIDE_BY_SIDE if item.get_closest_marker(mark)), item.path.name)
