"""The pytest plugin: reports why a test hangs on Ray, and what a passed test leaves stuck in the cluster.

It is loaded into every session where dstack is installed, so it does nothing unless asked to, and loads the rest of
dstack only then. It never loads Ray.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from dstack.pytest_plugin import options

if TYPE_CHECKING:
    from dstack.pytest_plugin.fixture import Dstack

FIXTURE = "dstack"
Wrapper = Generator[None, Any, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options to the command line and the ini file."""
    options.add_options(parser)


def pytest_load_initial_conftests(args: list[str]) -> None:
    """Lets ``--dstack-predict`` without a value stand before a file, which would be its value."""
    bare = f"--dstack-{options.PREDICT}"
    args[:] = [f"{one}=warn" if one == bare else one for one in args]


def pytest_configure(config: pytest.Config) -> None:
    """Reads the options; an invalid one ends the session with pytest's exit code for usage errors."""
    config.addinivalue_line(
        "markers",
        "dstack(timeout): after this many seconds, take a snapshot of the test's Ray cluster and fail the test",
    )
    config.stash[options.SETTINGS] = options.settings_of(config)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Wrapper:
    """Watches the fixtures of a test being set up."""
    __tracebackhide__ = True
    item.stash[options.BEGAN] = time.monotonic()
    item.stash[options.BEGAN_AT] = time.time()
    usage_error = None
    try:
        item.stash[options.TIMEOUT_S] = options.marked_timeout_s(item, item.config.stash[options.SETTINGS])
    except pytest.UsageError as error:
        usage_error = str(error)
    result = yield from _watched(item, "setup")
    if usage_error:
        pytest.fail(usage_error, pytrace=False)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Wrapper:
    """Watches the test, then checks what it leaves stuck."""
    settings = item.config.stash[options.SETTINGS]
    with settings.predictor.during_test() if settings.predictor else nullcontext():
        result = yield from (_profiled(item, settings.profile_s) if settings.profile_s else _watched(item, "call"))
    if settings.check == "end" or (settings.check == "module" and item.stash.get(options.IS_LAST_OF_MODULE, True)):
        _fail_if_stuck(item, settings)
    if settings.predictor is not None:
        _predict(item, settings)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Wrapper:
    """Watches the fixtures of a test being torn down."""
    return (yield from _watched(item, "teardown"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Notes whether a test is the last of its module, or runs it elsewhere on other schedules."""
    settings = item.config.stash[options.SETTINGS]
    if settings.explore:
        from dstack.pytest_plugin.exploring import explore_test

        explore_test(item, settings)
        return True
    if settings.check == "module":
        module = item.getparent(pytest.Module)
        item.stash[options.IS_LAST_OF_MODULE] = nextitem is None or nextitem.getparent(pytest.Module) is not module
    return None


def pytest_enter_pdb(config: pytest.Config) -> None:
    """Suspends the timeout while a debugger is in use."""
    config.stash[options.SETTINGS].is_debugging.set()


def pytest_leave_pdb(config: pytest.Config) -> None:
    """Resumes the timeout."""
    config.stash[options.SETTINGS].is_debugging.clear()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Lists what could not be inspected, and notes on tests that passed."""
    if not config.stash[options.SETTINGS].is_used:
        return
    passed = [report for report in terminalreporter.getreports("passed") if hasattr(report, "get_sections")]
    notes = [(one.nodeid, text) for one in passed for _, text in one.get_sections(f"Captured {options.SECTION}")]
    if notes:
        terminalreporter.section(options.SECTION)
    for nodeid, text in notes:
        terminalreporter.line(f"{nodeid}: {text}")
    predictor = config.stash[options.SETTINGS].predictor
    if predictor is not None and predictor.tests_s:
        share = predictor.spent_s / predictor.tests_s
        terminalreporter.line(f"dstack: prediction took {predictor.spent_s:.1f} s, {share:.1%} of the tests' time")


@pytest.fixture(name=FIXTURE)
def dstack_fixture(request: pytest.FixtureRequest) -> Iterator[Dstack]:
    """Inspects the Ray cluster that the test uses: ``check()``, ``snapshot()``, ``assert_no_deadlock(within=S)``."""
    from dstack.pytest_plugin.fixture import Dstack

    with Dstack(request.node) as inspecting:
        yield inspecting


def _watched(item: pytest.Item, when: str) -> Wrapper:
    """Runs one phase of a test; if it times out, the test fails with the cause of the hang."""
    __tracebackhide__ = True
    timeout_s = item.stash.get(options.TIMEOUT_S, None)
    if not timeout_s and FIXTURE not in getattr(item, "fixturenames", ()):
        return (yield)
    from dstack.pytest_plugin.phase import PHASE, Phase

    left_s = item.stash[options.BEGAN] + timeout_s - time.monotonic() if timeout_s else None
    phase = Phase(
        item, when, item.config.stash[options.SETTINGS], timeout_s, left_s if left_s and left_s > 0 else timeout_s
    )
    item.stash[PHASE] = phase
    try:
        phase.begin()
        try:
            result = yield
        except BaseException as error:
            phase.end(error)
            raise
        phase.end(None)
    except BaseException as error:
        phase.end(error)
        if phase.failure is None:
            raise
        raise pytest.fail.Exception(phase.failure, pytrace=False) from None
    finally:
        for text in phase.sections:
            item.add_report_section(when, options.SECTION, text)
    if phase.failure is not None:
        pytest.fail(phase.failure, pytrace=False)
    return result


def _profiled(item: pytest.Item, after_s: float) -> Wrapper:
    """Watches a test, and profiles it from a time on."""
    __tracebackhide__ = True
    from dstack.pytest_plugin.slow_test import SlowTest

    slow = SlowTest(after_s, item.config.stash[options.SETTINGS].address)
    try:
        with slow:
            return (yield from _watched(item, "call"))
    finally:
        if slow.text:
            item.add_report_section("call", options.SECTION, slow.text)


def _predict(item: pytest.Item, settings: options.PluginSettings) -> None:
    """Predicts deadlocks from the calls of a test that has passed; with ``error`` they fail it."""
    __tracebackhide__ = True
    if settings.predictor is None or ("ray._private.worker" not in sys.modules and not settings.address):
        return
    from dstack.errors import DstackError

    try:
        texts = settings.predictor.at_end_of(item, item.stash[options.BEGAN_AT])
    except DstackError as error:
        item.add_report_section("call", options.SECTION, f"could not predict deadlocks. {error}")
        return
    if texts and settings.predicts == "error":
        pytest.fail("Another order of the test's calls can deadlock.\n\n" + "\n".join(texts), pytrace=False)
    for text in texts:
        item.add_report_section("call", options.SECTION, f"another order of its calls can deadlock.\n{text}")


def _fail_if_stuck(item: pytest.Item, settings: options.PluginSettings) -> None:
    """Fails a test that leaves a deadlock or hang in the cluster; each finding fails one test only."""
    __tracebackhide__ = True
    if "ray._private.worker" not in sys.modules and not settings.address:
        return
    from dstack.errors import DstackError
    from dstack.probes.connection.own_cluster import connected_cluster, require_no_client
    from dstack.pytest_plugin.inspection import Inspector

    try:
        if not settings.address:
            require_no_client()
            if connected_cluster() is None:
                return
        inspection = Inspector(item, settings).inspect()
    except DstackError as error:
        item.add_report_section("call", options.SECTION, f"could not check for deadlocks. {error}")
        return
    settings.reported.update(key for one in inspection.stuck for key in one.members)
    if inspection.stuck:
        pytest.fail(f"The test leaves a deadlock or hang in the cluster.\n\n{inspection.report}", pytrace=False)
    if inspection.analysed.diagnosis.incomplete:
        reasons = inspection.gap_lines()
        item.add_report_section(
            "call", options.SECTION, f"no deadlock was found, but the check is inconclusive:\n{reasons}"
        )
