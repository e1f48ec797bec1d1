"""What the workloads of the soak share: rounds for ever, which begin anew after a failure.

A workload waits, within a round, for everything that it began in it. So each line `round` or `failed` in its output
shows that all its earlier waits have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn, TypeVar

import ray

Team = TypeVar("Team")

LINES_EVERY_S = 0.5
"""How often a line is printed at most."""
PAUSE_S = 1.0
"""Pause before a new team after a failure."""


def play_for_ever(prepare: Callable[[], Team], play: Callable[[Team], object]) -> NoReturn:
    """Print `job` with the id and `ready` after the first ``prepare()``, then play rounds with the team that it makes.

    After an error, as of a task whose worker was killed, a line `failed` is printed, and a new team is made. A failed
    assertion is an error of the program, and ends it.
    """
    print(f"job {ray.get_runtime_context().get_job_id()}", flush=True)
    is_ready = False
    while True:
        try:
            team = prepare()
            if not is_ready:
                is_ready = True
                print("ready", flush=True)
            _play_rounds(team, play)
        except AssertionError:
            raise
        except Exception as error:  # whatever Ray or a library raises when a process is killed
            print(f"failed {type(error).__name__}: {_first_line(error)}", flush=True)
        time.sleep(PAUSE_S)


def _play_rounds(team: Team, play: Callable[[Team], object]) -> NoReturn:
    printed_at = 0.0
    while True:
        play(team)
        if time.monotonic() - printed_at > LINES_EVERY_S:
            printed_at = time.monotonic()
            print("round", flush=True)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "")[:200]
