"""The pytest plugin in separate sessions: real hangs on real clusters, and messages for failed snapshots."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from xml.etree import ElementTree

import pytest

import dstack
from dstack.pytest_plugin.inspection import _saved
from tests.clusters.ray_clusters import own_environment, ray_cluster
from tests.paths import EXAMPLES, PROGRAMS, ROOT
from tests.tui.sources import recorded

INSTALLED = any(point.name == "dstack" for point in entry_points(group="pytest11"))
ASYNCIO = ("-o", "asyncio_default_fixture_loop_scope=function")
SESSION_S = 200.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a test in JUnit XML: ``passed``, ``failure`` or ``error``, and its text."""

    status: str
    text: str = ""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run a separate session, with the plugin loaded as by an installed dstack."""
    plugin = () if INSTALLED else ("-p", "dstack.pytest_plugin")
    others = () if options[-2:] == ASYNCIO else ("-p", "no:asyncio")
    return pytester.runpytest_subprocess(*plugin, *others, "--junitxml=junit.xml", *options, timeout=SESSION_S)


def outcomes(pytester: pytest.Pytester) -> dict[str, Outcome]:
    """The outcomes by the name of the test; a test that failed in two phases has the last."""
    found: dict[str, Outcome] = {}
    for case in ElementTree.parse(pytester.path / "junit.xml").iter("testcase"):
        bad = [one for one in case if one.tag in ("failure", "error")]
        found[case.attrib["name"]] = Outcome(bad[0].tag, bad[0].text or "") if bad else Outcome("passed")
    return found


@contextmanager
def own_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests in here start clusters of their own, of which no process is left at the end."""
    with own_environment() as environment:
        for name in ("HOME", "RAY_TMPDIR", "RAY_USAGE_STATS_ENABLED"):
            monkeypatch.setenv(name, environment[name])
        yield


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_the_documented_tests_end_as_they_say(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile(test_example=(EXAMPLES / "test_deadlock.py").read_text())
    with own_cluster(monkeypatch):
        run(pytester, "-o", "dstack_timeout=60", "--dstack-dir=hangs")
    found = outcomes(pytester)
    assert {name: outcome.status for name, outcome in found.items()} == {
        "test_a_transfer_arrives": "passed",
        "test_a_transfer_back_hangs": "failure",
        "test_a_transfer_without_a_waiter": "passed",
        "test_a_transfer_is_watched": "failure",
    }
    text = found["test_a_transfer_back_hangs"].text
    assert text.startswith("Timeout of 5 s, deadlock: the call of this test was at\n")
    assert "DEADLOCK  Account.transfer of actor" in text, text
    assert found["test_a_transfer_is_watched"].text.startswith("The test is in a deadlock or hang.")


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_hanging_test_fails_with_its_wait_and_other_tests_pass(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests include the documented example, and run in two workers of xdist, each with its own cluster."""
    hanging = (PROGRAMS / "pytest_sessions/hanging_tests.py").read_text()
    example = (EXAMPLES / "test_deadlock.py").read_text()
    pytester.makepyfile(test_hanging=hanging, test_example=example)
    with own_cluster(monkeypatch):
        result = run(pytester, "-n", "2", "--dist=loadfile", "-o", "dstack_timeout=60", "--dstack-dir=hangs", *ASYNCIO)
    found = outcomes(pytester)
    assert {name: outcome.status for name, outcome in found.items()} == {
        "test_body": "failure",
        "test_setup": "error",
        "test_teardown": "error",
        "test_await": "failure",
        "test_await_unset_event": "failure",
        "test_slow": "passed",
        "test_asserts": "passed",
        "test_other_timeout": "failure",
        "test_quick": "passed",
        "test_a_transfer_arrives": "passed",
        "test_a_transfer_back_hangs": "failure",
        "test_a_transfer_without_a_waiter": "passed",
        "test_a_transfer_is_watched": "failure",
    }, result.outlines
    for name in ("body", "setup", "teardown", "await", "a_transfer_back_hangs", "a_transfer_is_watched"):
        text = found[f"test_{name}"].text
        first = "Account.transfer of actor" if "transfer" in name else "Clerk.asks_itself waits for Clerk.ready, which"
        assert f"DEADLOCK  {first}" in text, text
        assert "Confirmed by 2 samples" in text
        assert "Saved. Show it again with: dstack show" in text
        (page,) = re.findall(r"Open it in a browser: (.+\.html)", text)
        assert first in Path(page).read_text()
    for phase in ("setup", "teardown"):
        assert found[f"test_{phase}"].text.startswith(f"Timeout of 2 s, deadlock: the {phase} of this test was at\n")
        assert f"in hanging_{phase}\n    ray.get(deadlock())" in found[f"test_{phase}"].text
    assert "Timeout of 2 s: the call of this test was at" in found["test_await_unset_event"].text
    assert "in test_await_unset_event  await asyncio.Event().wait()" in found["test_await_unset_event"].text
    assert "from pytest-timeout" in found["test_other_timeout"].text
    assert found["test_a_transfer_back_hangs"].text.startswith(
        "Timeout of 5 s, deadlock: the call of this test was at\n"
    )
    assert found["test_a_transfer_is_watched"].text.startswith("The test is in a deadlock or hang.")
    assert len({dstack.load(path).address for path in (pytester.path / "hangs").glob("*.json.gz")}) == 2


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_test_whose_calls_could_deadlock_in_another_order_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both tests pass without the prediction; the caller of the first one waits between its calls."""
    pytester.makepyfile((PROGRAMS / "pytest_sessions/predicted_tests.py").read_text())
    with own_cluster(monkeypatch):
        result = run(pytester, "--dstack-predict=error")
    found = outcomes(pytester)
    assert {name: one.status for name, one in found.items()} == {
        "test_both_work": "failure",
        "test_one_after_the_other": "passed",
    }, result.outlines
    text = " ".join(found["test_both_work"].text.split())
    assert "2 calls of Shop.work wait for each other for ever" in text
    assert "return ray.get(self.other.ping.remote())" in text
    result.stdout.fnmatch_lines(["dstack: prediction took *"])


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_test_fails_for_the_hang_it_leaves_and_not_for_hangs_of_other_jobs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_leaving=(PROGRAMS / "pytest_sessions/passing_tests.py").read_text())
    with ray_cluster(auth="on") as cluster, cluster.run_example("two_actors"):
        for name in ("HOME", "RAY_TMPDIR", "RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE"):
            monkeypatch.setenv(name, cluster.environment[name])
        monkeypatch.setenv("CLUSTER", cluster.address)
        result = run(
            pytester, "--dstack-check=end", "--dstack-timeout=2", "--dstack-fail-on=stuck", "--dstack-profile=1"
        )
    found = outcomes(pytester)
    result.stdout.fnmatch_lines(
        ["*test_slow_beside_others_deadlock: where its time went after 1 s", "*nap (*) * time.sleep"]
    )
    assert {name: outcome.status for name, outcome in found.items() if outcome.status != "passed"} == {
        "test_leaves_a_deadlock": "failure"
    }, result.outlines
    text = found["test_leaves_a_deadlock"].text
    assert text.startswith("The test leaves a deadlock or hang in the cluster.\n\nDEADLOCK  Clerk.asks_itself")
    assert "Cashier" not in text
    assert len(found) == 5
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_an_uninterruptible_test_ends_the_session_with_a_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import signal, threading

        def test_it():
            print("printed before")
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            lock = threading.Lock()
            with lock:
                lock.acquire()
        """
    )

    result = run(pytester, "--dstack-timeout=0.5")

    assert result.ret == 1
    result.stderr.fnmatch_lines(
        [
            "*::test_it",
            "Timeout of 0.5 s: the call of this test was at",
            "    lock.acquire()",
            "dstack could not take a snapshot. The test is not connected to a Ray cluster.*",
            "printed before",
            "The test cannot be interrupted, so dstack ends the session.",
        ]
    )


def test_a_test_without_ray_fails_alone_and_one_that_swallows_the_interruption_fails_too(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import threading

        def test_hangs():
            threading.Event().wait()

        def test_swallows():
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                pass

        def test_continues():
            pass
        """
    )

    result = run(pytester, "--dstack-timeout=0.3", "--dstack-check=end")

    result.assert_outcomes(failed=2, passed=1)
    assert "threading.Event().wait()" in outcomes(pytester)["test_hangs"].text
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dstack-timeout=soon"], "The --dstack-timeout must be a number of seconds, not 'soon'."),
        (["--dstack-timeout=-1"], "The --dstack-timeout must be a number of seconds, not '-1'."),
        (["--dstack-check=often"], "--dstack-check must be one of off, end, module, not 'often'."),
        (["--dstack-fail-on=all"], "--dstack-fail-on must be one of timeout, stuck, not 'all'."),
        (
            ["--dstack-dir=/dev/null/x"],
            "Cannot create --dstack-dir /dev/null/x: Not a directory. Give another directory.",
        ),
    ],
)
def test_bad_options_are_usage_errors(pytester: pytest.Pytester, options: list[str], message: str) -> None:
    result = run(pytester, *options)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


def test_a_bad_marker_is_an_error_of_its_test_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.dstack(30)
        def test_it():
            pass

        def test_other():
            pass
        """
    )

    result = run(pytester, "--strict-markers")

    result.assert_outcomes(errors=1, passed=1)
    assert "a timeout in seconds: @pytest.mark.dstack(timeout=60)" in outcomes(pytester)["test_it"].text


def test_a_cluster_that_does_not_answer_is_reported(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")

    result = run(pytester, "--dstack-check=module", "--dstack-address=127.0.0.1:1")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*::test_it: could not check for deadlocks. Nothing listens on 127.0.0.1:1: *"])


def test_a_report_is_printed_if_its_snapshot_cannot_be_saved(tmp_path: Path) -> None:
    is_saved, text = _saved(recorded("queue-ray-2.46"), tmp_path / "absent" / "x.json")

    assert not is_saved
    assert text.startswith(f"The snapshot was not saved. {tmp_path / 'absent'}: no such directory.")


@pytest.mark.parametrize("options", [[], ["--dstack-timeout=60", "--dstack-check=end"]])
def test_sessions_without_ray_load_nothing_of_it(pytester: pytest.Pytester, options: list[str]) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            heavy = {"ray", "textual", "rich", "networkx", "msgspec", "grpc", "psutil"}
            assert not heavy & set(sys.modules)
        """
    )

    run(pytester, "-W", "error", "--strict-config", "-p", "no:hypothesispytest", *options).assert_outcomes(passed=1)


@pytest.mark.exhaustive
def test_each_explored_test_runs_in_processes_of_its_own(pytester: pytest.Pytester) -> None:
    """No test uses Ray here; each appends a line to a file for each of its runs."""
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def log():
            with open("runs.txt", "a") as file:
                yield file

        def test_passes(log):
            log.write("passes ")

        def test_fails(log):
            log.write("fails ")
            raise ValueError("by itself")
        """
    )
    result = run(pytester, "--dstack-explore=1")
    assert {name: outcome.status for name, outcome in outcomes(pytester).items()} == {
        "test_passes": "passed",
        "test_fails": "failure",
    }, result.outlines
    assert (pytester.path / "runs.txt").read_text().split() == ["passes", "passes", "fails"]
    assert "ValueError: by itself" in outcomes(pytester)["test_fails"].text
    result.stdout.fnmatch_lines(["*test_passes: None of 2 runs hung: 2 passed."])


@pytest.mark.ray
@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_an_explored_test_that_can_hang_fails_with_the_report(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two actors that call each other, once one after the other and once at an interval; in two workers of xdist."""
    program = (ROOT / "tests" / "explore_programs" / "two_actors.py").read_text()
    pytester.makepyfile(
        test_peers="""
        import pathlib

        def test_at_an_interval():
            exec(pathlib.Path("two_actors.py").read_text(), {"__name__": "two_actors"})

        def test_one_after_the_other():
            text = pathlib.Path("two_actors.py").read_text()
            exec(text.replace("time.sleep(0.1)", "ray.get(first)"), {"__name__": "two_actors"})
        """
    )
    (pytester.path / "two_actors.py").write_text(program)
    with own_cluster(monkeypatch):
        run(pytester, "-n", "2", "--dstack-explore=3", "--dstack-dir=hangs")
    found = outcomes(pytester)
    assert {name: outcome.status for name, outcome in found.items()} == {
        "test_at_an_interval": "failure",
        "test_one_after_the_other": "passed",
    }
    text = found["test_at_an_interval"].text
    assert "DEADLOCK  Peer.work of actor" in text
    assert "Repeat it with: dstack explore --repeat 'PushTask=" in text
    assert len(list((pytester.path / "hangs").iterdir())) == 1
