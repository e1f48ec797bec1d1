"""How the suite itself runs: what is rerun and reported, and that it does not depend on how it is started."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.paths import ROOT

CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.conftest import *
from tests.conftest import default_signals_in_children
"""
ON_A_CLUSTER = """
import pathlib, signal, subprocess, sys, threading
import pytest

@pytest.mark.ray
@pytest.mark.parametrize("number", range({times}))
def test_that_fails_at_first(number):
    failed = pathlib.Path(__file__).with_suffix(f".failed{{number}}")
    if not failed.exists():
        failed.touch()
        raise AssertionError("the first failure")

def test_the_signals_of_children():
    prints = "import signal; print([n for n in (1, 2, 3) if signal.getsignal(n) is signal.SIG_IGN])"
    done = subprocess.run([sys.executable, "-c", prints], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\\n"
"""
FAILING = """
import threading
import pytest

def test_a_unit():
    raise AssertionError("the only try")

@pytest.mark.ray
def test_that_is_blocked():
    threading.Event().wait()
"""


@pytest.fixture(autouse=True)
def suite(pytester: pytest.Pytester) -> None:
    """An empty suite with the hooks of this one."""
    pytester.makeconftest(CONFTEST)
    pytester.makeini("[pytest]\nmarkers =\n ray\nasyncio_default_fixture_loop_scope = function\n")


def run(pytester: pytest.Pytester, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it as under ``nohup`` and ``&``, with the signals of a terminal ignored."""

    def ignore_signals() -> None:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)

    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(
        command, preexec_fn=ignore_signals, cwd=pytester.path, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("times", "options", "code"), [(3, ("-n", "2"), 0), (4, (), 1)])
def test_tests_on_a_cluster_are_rerun_once_and_listed_and_more_than_three_fail_the_run(
    times: int, options: tuple[str, ...], code: int, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(ON_A_CLUSTER.format(times=times))

    done = run(pytester, *options)

    assert f"{times + 1} passed, {times} rerun" in done.stdout, done.stdout
    assert f"{times} of at most 3 tests needed a second try" in done.stdout
    _, *listed = done.stdout.split("\nRERUN ")
    assert len(listed) == times
    assert all("AssertionError: the first failure" in one for one in listed)
    assert done.returncode == code


def test_unit_tests_are_never_rerun_and_a_second_try_has_a_timeout_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(FAILING)

    done = run(pytester, "--timeout", "1.5")

    assert "2 failed, 1 rerun" in done.stdout, done.stdout
    assert "1 of at most 3 tests needed a second try" in done.stdout
