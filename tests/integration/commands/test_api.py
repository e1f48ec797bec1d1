"""The Python API and ``dstack.guard``, called by a driver on its own cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import dstack
from tests.clusters.ray_clusters import own_environment
from tests.paths import PROGRAMS
from tests.processes import wait_until

PROGRAM = PROGRAMS / "drivers/api_calls.py"
DEADLOCK = "DEADLOCK  Side.meet and Side.answer wait for each other"
Plain = dict[str, Any]


@pytest.fixture(scope="module")
def outcome() -> Plain:
    """The results that the program prints."""
    with own_environment() as environment:
        done = subprocess.run(
            [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=120
        )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("outcome ")] or [""]
    assert line, done.stderr
    answer: Plain = json.loads(line.removeprefix("outcome "))
    return answer


@pytest.mark.ray
def test_a_driver_reads_itself_without_side_effects(outcome: Plain) -> None:
    assert outcome["reads itself"]
    assert outcome["idle"] == "idle"
    assert outcome["unchanged"]


@pytest.mark.ray
def test_a_block_of_the_driver_is_profiled(outcome: Plain) -> None:
    profile = outcome["profile"]

    assert profile["too early"] == "The profile is not complete yet."
    assert re.search(r"^ 1\. .*wait_for .*time\.sleep\n    from driver api_calls\.py .*ray\.get", profile["top"], re.M)
    assert profile["folded"].startswith("driver api_calls.py;<module> (")
    assert profile["saved"]


@pytest.mark.ray
@pytest.mark.parametrize("way", ["main thread", "await", "assert"])
def test_a_deadlock_is_raised_with_its_report(outcome: Plain, way: str) -> None:
    assert outcome[way]["raised"].startswith(DEADLOCK)
    assert "Confirmed by 2 samples" in outcome[way]["raised"]
    assert outcome[way]["is_an_assertion"]


@pytest.mark.ray
def test_only_the_stuck_and_killable_actor_is_killed(outcome: Plain) -> None:
    assert outcome["main thread"]["left_alone"] is None
    assert outcome["other thread"] == {"left_alone": "Python can interrupt blocked calls only in the main thread"}
    assert outcome["await"]["continues"] == "yes"
    assert outcome["await"]["check"] == "deadlock"
    assert outcome["slow"] == {
        "verdict": "running",
        "left_alone": "it is not part of a confirmed deadlock, nor blocked behind one",
        "value": "waited",
    }


def test_impossible_requests_raise_an_error_of_one_sentence() -> None:
    with pytest.raises(dstack.ClusterError, match=r"Nothing listens on 127\.0\.0\.1:1: the connection was refused\."):
        dstack.check("127.0.0.1:1")
    with pytest.raises(dstack.UsageError, match="'nonsense' is not a valid address"):
        dstack.assert_no_deadlock("nonsense")
    with pytest.raises(dstack.UsageError, match="it must be positive"):
        dstack.snapshot(timeout_s=0)
    with pytest.raises(dstack.UsageError, match="positive numbers of seconds"):
        dstack.guard(0)


def test_a_guard_without_a_cluster_reports_it_and_the_code_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=said.append, flush=lambda: None))

    with dstack.guard(0.01, address="127.0.0.1:1"):
        wait_until(lambda: "\n" in said, deadline_s=60, what=lambda: f"a whole line in {said}")

    assert said[0].startswith("dstack could not take a snapshot of the hang. Nothing listens on 127.0.0.1:1")
