"""The main thread is interrupted in its blocked call, and no interruption arrives afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dstack.processes.interruption import InterruptibleCode
from tests.paths import ROOT


@pytest.fixture(autouse=True)
def pythons_own_handler() -> Iterator[None]:
    """Handles SIGINT as a Python in the foreground does, however the suite was started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def place_of_main() -> tuple[object, int]:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return frame.f_code, frame.f_lasti


@pytest.mark.parametrize(
    "block",
    [threading.Event().wait, lambda: time.sleep(60), signal.pause],
    ids=["event", "sleep", "pause"],
)
def test_a_blocked_call_is_interrupted(block: Callable[[], object]) -> None:
    interruption = InterruptibleCode()
    interruption.begin()
    is_broken = threading.Event()

    def interrupt_when_blocked() -> None:
        places = [place_of_main()]
        while not is_broken.wait(0.02):
            places = [*places, place_of_main()] if place_of_main() == places[-1] else [place_of_main()]
            if len(places) % 50 == 10:  # it did not move for 0.2 s; and again, where it was just about to block
                interruption.interrupt()

    thread = threading.Thread(target=interrupt_when_blocked)
    try:
        thread.start()
        block()
    except KeyboardInterrupt:
        is_broken.set()
    interruption.end()
    is_set = is_broken.is_set()
    is_broken.set()
    thread.join()

    assert is_set
    assert interruption.is_interrupted


def test_no_interruption_arrives_after_the_end() -> None:
    interruption = InterruptibleCode()
    interruption.begin()
    interruption.end()

    assert not interruption.interrupt()
    assert not interruption.is_interrupted


def test_an_interruption_at_the_very_end_does_not_outlast_it() -> None:
    for turn in range(300):
        interruption = InterruptibleCode()
        interruption.begin()
        thread = threading.Thread(target=interruption.interrupt)
        try:
            thread.start()
            for _ in range(turn):
                pass
            interruption.end()
        except KeyboardInterrupt:
            interruption.end()
        thread.join()  # here nothing may arrive any more
        time.sleep(0)


def test_no_signal_is_sent_where_sigint_is_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert not InterruptibleCode().interrupt()
    finally:
        signal.signal(signal.SIGINT, before)


BLOCKED_S = 60.0
DISPOSITIONS = {"ignored": signal.SIG_IGN, "the system's": signal.SIG_DFL}
"""With which a program may be started; Python puts its own handler in the place of the second."""


def run(program: str, disposition: str = "ignored", *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program, with SIGINT ignored or with the system's default."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=BLOCKED_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, DISPOSITIONS[disposition]),
    )


BREAKS = """
import itertools, os, signal, sys, threading
from dstack.processes.interruption import InterruptibleCode

if sys.argv[1:]:
    signal.signal(signal.SIGINT, getattr(signal, sys.argv[1]))
before = signal.getsignal(signal.SIGINT)
for depth in (1, 2):
    around = [InterruptibleCode() for _ in range(depth)]
    for one in around:
        one.begin()
    is_broken = threading.Event()

    def strike():
        for pause_s in itertools.chain([0.2], itertools.repeat(10.0)):  # again, if it came just before the wait
            if is_broken.wait(pause_s):
                return
            around[-1].interrupt()

    try:
        threading.Thread(target=strike).start()
        threading.Event().wait()
    except KeyboardInterrupt:
        is_broken.set()
        print("broken")
    for one in reversed(around):
        one.end()
    print(signal.getsignal(signal.SIGINT) is before)
"""


@pytest.mark.parametrize(
    ("disposition", "arguments"),
    [("ignored", []), ("the system's", []), ("the system's", ["SIG_DFL"]), ("ignored", ["default_int_handler"])],
)
def test_a_blocked_call_is_interrupted_with_any_sigint_handler(disposition: str, arguments: list[str]) -> None:
    done = run(BREAKS, disposition, *arguments)

    assert (done.stdout.split(), done.stderr) == (["broken", "True"] * 2, "")


OTHERS = """
import os, signal, sys, time
from dstack.processes.interruption import InterruptibleCode

signal.signal(signal.SIGINT, getattr(signal, sys.argv[1]))
one = InterruptibleCode()
one.begin()
os.kill(os.getpid(), signal.SIGINT)
time.sleep(0)
one.end()
print("resumed")
"""


@pytest.mark.parametrize(("before", "code"), [("SIG_IGN", 0), ("SIG_DFL", -signal.SIGINT)])
def test_a_foreign_sigint_reaches_its_own_handler(before: str, code: int) -> None:
    done = run(OTHERS, "ignored", before)

    assert (done.returncode, done.stderr) == (code, "")


GUARDED = """
import json, signal, threading
from dstack import DeadlockFound, guarding
from tests.unit.scenes import Scene

scene = Scene()
driver, left, right = scene.driver(), scene.actor("Left"), scene.actor("Right")
call = scene.call(left, "run", by=driver)
left.runs(call).gets(scene.call(right, "step", by=left))
right.runs(scene.call(right, "run", by=driver)).gets(scene.call(left, "step", by=right))
driver.gets(call)
snapshot = scene.sample().second_sample().snapshot()

class Collector:
    def __init__(self, *arguments):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def take_analysed(self, analyse):
        return analyse(snapshot)

    def cancel(self):
        pass

guarding.Collector = Collector
guarding.own_worker = lambda snapshot: driver.worker
result = {}
one = guarding.guard(0.5, lambda hang: result.update(left_alone=hang.left_alone), address="host:1", break_deadlock=True)
try:
    with one:
        one._watch._os_thread_id = driver.threads[0].tid
        threading.Event().wait()
except DeadlockFound as error:
    result["raised"] = str(error).split()[0]
result["ignored"] = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
print(json.dumps(result))
"""


def test_a_guard_breaks_a_deadlock_also_where_sigint_is_ignored() -> None:
    done = run(GUARDED)

    assert done.stdout, done.stderr
    assert json.loads(done.stdout) == {"left_alone": None, "raised": "DEADLOCK", "ignored": True}


HANGS = """
import signal
import threading

def test_hangs():
    threading.Event().wait()

def test_continues():
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # dstack's own, while it watches
"""


def test_the_plugin_breaks_a_test_also_where_sigint_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    options = ["--dstack-timeout=0.5", "--dstack-address=127.0.0.1:1", "-p", "no:cacheprovider"]

    done = run("import pytest, sys; sys.exit(pytest.main(sys.argv[1:]))", "ignored", str(tmp_path), *options)

    assert "Timeout of 0.5 s" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
