"""Reruns of failed tests, and their list in the summary.

A test on real parts - a Ray cluster, several hosts, a terminal - is rerun once when it fails; no other test is. The
summary lists every rerun with its first failure, and more than ``MOST`` reruns fail the whole run.
"""

from __future__ import annotations

import pytest
import pytest_timeout

REAL_PARTS = ("ray", "hosts", "terminal")
"""The markers of tests that may be rerun."""

MOST = 3
"""Maximum number of tests of one run that may need a second try."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.get_closest_marker(name) for name in REAL_PARTS):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give the second try the whole timeout: pytest-timeout 2.4 sets one timer for all tries together."""
    settings = pytest_timeout._get_item_settings(item)
    if settings.timeout and getattr(item, "execution_count", 1) > 1:
        item.config.pluginmanager.hook.pytest_timeout_set_timer(item=item, settings=settings)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if len(_first_failures(session.config)) > MOST and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    failures = _first_failures(config)
    if not failures:
        return
    terminalreporter.section(f"{len(failures)} of at most {MOST} tests needed a second try", red=len(failures) > MOST)
    for test, failure in failures.items():
        terminalreporter.write_line(f"RERUN {test}", yellow=True, bold=True)
        terminalreporter.write_line(failure)


def _first_failures(config: pytest.Config) -> dict[str, str]:
    """The texts of the first failures by test id; empty in a worker of pytest-xdist, whose controller has them."""
    reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    reruns: list[pytest.TestReport] = reporter.getreports("rerun") if reporter else []
    failures: dict[str, str] = {}
    for report in reruns:
        failures.setdefault(report.nodeid, report.longreprtext)
    return failures
