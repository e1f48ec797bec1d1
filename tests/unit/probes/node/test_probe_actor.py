"""The probe's actor ends its process when nothing uses it."""

from __future__ import annotations

import subprocess
import sys
import time

USED = """
import sys, time
from dstack.probes.node.probe_actor import ProbeActor
actor = ProbeActor(idle_s=1.0)
end = time.monotonic() + {used_s}
while time.monotonic() < end:
    actor.needs_pyspy_for()
    time.sleep(0.1)
print(time.monotonic(), flush=True)
time.sleep(100)
"""
RUNNING = """
import time
from dstack.probes.node.probe_actor import ProbeActor
actor = ProbeActor(idle_s=0.2)
with actor._watchdog.call():
    time.sleep(1.5)
    print(time.monotonic(), flush=True)
time.sleep(100)
"""
HANGING = """
import time
from dstack.probes.node import probe_actor
probe_actor.CLOSE_S = 0.2
probe_actor.Watchdog(0.1, lambda: time.sleep(100))
print(time.monotonic(), flush=True)
time.sleep(100)
"""


def idle_s_of(script: str) -> float:
    """The time between what the script prints and its end, which must be orderly."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    ended = time.monotonic()
    assert (done.returncode, done.stderr) == (0, "")
    return ended - float(done.stdout)


def test_an_unused_probe_ends() -> None:
    assert 0.9 < idle_s_of(USED.format(used_s=0)) < 30


def test_a_probe_that_is_used_stays() -> None:
    assert 0.8 < idle_s_of(USED.format(used_s=2.0)) < 30


def test_a_probe_does_not_end_during_a_call() -> None:
    assert idle_s_of(RUNNING) > 0


def test_a_probe_ends_even_if_its_orderly_end_hangs() -> None:
    assert 0.1 < idle_s_of(HANGING) < 30
