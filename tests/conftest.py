"""Shared fixtures, the hypothesis profile, the order of parallel tests, and reruns."""

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.clusters.shared_cluster import shared
from tests.fuzzing.effort import examples
from tests.hosts.fixtures import hosts_possible, three_hosts
from tests.reruns import (
    pytest_collection_modifyitems,
    pytest_runtest_setup,
    pytest_sessionfinish,
    pytest_terminal_summary,
)

__all__ = [
    "hosts_possible",
    "pytest_collection_modifyitems",
    "pytest_runtest_setup",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "shared",
    "three_hosts",
]

settings.register_profile("effort", examples())
settings.load_profile("effort")

NOT_INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Signals that ``nohup``, ``&`` in a script and some CI runners ignore in their children."""


@pytest.fixture(scope="session", autouse=True)
def default_signals_in_children() -> Iterator[None]:
    """Give child processes the default signal handlers, even if this process ignores signals.

    An ignored signal stays ignored in a child, one with a handler does not (POSIX, execve). So this process ignores
    it with a handler.
    """
    before = {number: signal.getsignal(number) for number in NOT_INHERITED}
    ignored = [number for number, handler in before.items() if handler is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, before[number])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n 2`` files run in parallel, except those on hosts, which share the hosts."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.partition("::")[0]
            return "hosts" if file.startswith("tests/hosts/") else file

    return ByFile(config, log)
