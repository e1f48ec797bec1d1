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

WITHOUT_RAY = ("tests/unit/", "tests/tui/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n 2``: a test on hosts runs beside one on a local Ray, and those without Ray file by file beside either.

    There are never two of one kind: each takes what the machine has.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByKind(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.partition("::")[0]
            if file.startswith(WITHOUT_RAY):
                return file
            return "hosts" if file.startswith("tests/hosts/") else "local Ray"

    return ByKind(config, log)
