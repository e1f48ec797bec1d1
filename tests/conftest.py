"""What every test may ask for, how random examples are chosen, and what runs side by side."""

import os
from typing import Any

import pytest
from hypothesis import settings

from tests.hosts.fixtures import hosts_possible, three_hosts

__all__ = ["hosts_possible", "three_hosts"]

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=5_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n 2`` files run side by side, but those on hosts, which share them, one after another."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.partition("::")[0]
            return "hosts" if file.startswith("tests/hosts/") else file

    return ByFile(config, log)
