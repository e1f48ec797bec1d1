"""Run the ``dstack`` command as a user does: in a separate process, on another process's cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.processes import wait_until

Json = dict[str, Any]
Result = subprocess.CompletedProcess[str]
CHECK_PAUSE_S = 0.4
"""Pause between two checks, so that the checked program gets CPU time."""
DSTACK = (sys.executable, "-m", "dstack")


def dstack(*arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = 120.0) -> Result:
    """Run the command to its end."""
    return subprocess.run(
        [*DSTACK, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def check(address: str, environment: Mapping[str, str], *options: str) -> Json:
    """The document of ``dstack check --json`` with its exit code as ``exit_code``.

    By default no other node is expected: programs begin before a young cluster has settled.
    """
    settled = ("--nodes-settle-after", "0", *options)
    done = dstack("check", "--address", address, "--json", *settled, environment=environment)
    assert done.stdout, done.stderr
    document: Json = json.loads(done.stdout)
    return {**document, "exit_code": done.returncode}


def settled_check(
    address: str, environment: Mapping[str, str], is_settled: Callable[[Json], bool], deadline_s: float = 90.0
) -> Json:
    """The first check that ``is_settled`` accepts: an example prints ``ready`` a moment before it hangs."""
    last: list[Json] = []

    def settled() -> Json | None:
        last[:] = [check(address, environment)]
        return last[0] if is_settled(last[0]) else None

    return wait_until(
        settled,
        deadline_s=deadline_s,
        what=lambda: f"settled: {json.dumps(last, indent=1)[-3000:]}",
        pause_s=CHECK_PAUSE_S,
    )


def elapsed_s(action: Callable[[], Result]) -> tuple[Result, float]:
    """The result of a run and its duration."""
    began = time.monotonic()
    return action(), time.monotonic() - began
