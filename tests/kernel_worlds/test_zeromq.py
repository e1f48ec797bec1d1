"""Two processes with a pair of ZeroMQ sockets, whose native threads wait for each other and send heartbeats."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from tests.kernel_worlds.judge import Judgement, Reading, judge
from tests.kernel_worlds.stage import Stage
from tests.kernel_worlds.test_real_worlds import WATCHED_S
from tests.kernel_worlds.world import Action, Channel, Does, Process, World
from tests.processes import Child, running, wait_until

pytestmark = pytest.mark.libraries
Act = Literal["recv", "poll", "sleep", "feed", "timed poll"]
ACTIONS: dict[Act, Does] = {"recv": "receive", "poll": "poll", "sleep": "sleep", "feed": "feed", "timed poll": "sleep"}
"""What a thread does, and the action of a world that has the same truth."""
HEARTBEAT_MS = 200
PROGRAM = """
import sys, time, zmq
address, side, heartbeat_ms, does = sys.argv[1:]
pair = zmq.Context().socket(zmq.PAIR)
if int(heartbeat_ms):
    pair.setsockopt(zmq.HEARTBEAT_IVL, int(heartbeat_ms))
    pair.setsockopt(zmq.HEARTBEAT_TIMEOUT, 60_000)
if side == "0":
    pair.bind(address)
    pair.send(b"")
else:
    pair.connect(address)
    pair.recv()
print("ready", flush=True)
while True:
    match does:
        case "recv":
            pair.recv()
        case "poll":
            pair.poll()
        case "timed poll":
            pair.poll(600_000)
        case "feed":
            time.sleep(2)
            pair.send(b"")
        case _:
            time.sleep(600)
"""


@contextlib.contextmanager
def pair(acts: tuple[Act, Act], address: str, heartbeat_ms: int, folder: Path) -> Iterator[Stage]:
    """The processes, once they are connected; the world has a Unix socket in place of ZeroMQ's."""
    processes = [Process("driver", threads=[Action(ACTIONS[act], ((0, side),))]) for side, act in enumerate(acts)]
    stage = Stage(World(0, processes, [Channel("unix", ({0}, {1}))]))
    with contextlib.ExitStack() as stack:
        children: list[Child] = []
        for side, act in enumerate(acts):
            command = [sys.executable, "-c", PROGRAM, address, f"{side}", f"{heartbeat_ms}", act]
            children.append(stack.enter_context(running(command, {}, folder / f"{side}.log")))
            stage.pids[side] = stage.tids[side, 0] = children[-1].pid
        for child in children:
            child.wait_for_line("ready", deadline_s=60)
        yield stage


def judged(stage: Stage) -> Judgement:
    reading = Reading(stage)
    reading.sample()
    wait_until(lambda: reading.age_s > WATCHED_S, deadline_s=60, what=lambda: "the second sample")
    reading.sample()
    return judge(reading)


def addresses(folder: Path) -> tuple[str, str]:
    return f"ipc://{folder}/pair", f"tcp://127.0.0.1:{random.randrange(20_000, 30_000)}"


@pytest.mark.parametrize("heartbeat_ms", [0, HEARTBEAT_MS])
@pytest.mark.parametrize("acts", [("recv", "sleep"), ("poll", "feed"), ("feed", "recv"), ("recv", "timed poll")])
def test_a_pair_is_not_stalled_while_one_may_send(acts: tuple[Act, Act], heartbeat_ms: int, tmp_path: Path) -> None:
    for address in addresses(tmp_path):
        with pair(acts, address, heartbeat_ms, tmp_path) as stage:
            found = judged(stage)

        assert not list(found.errors()), str(found)
        assert found.diagnosis.verdict == "running", str(found)


@pytest.mark.parametrize("heartbeat_ms", [0, HEARTBEAT_MS])
@pytest.mark.parametrize("acts", [("recv", "recv"), ("recv", "poll")])
def test_a_pair_that_only_receives_is_stalled_also_while_heartbeats_are_sent(
    acts: tuple[Act, Act], heartbeat_ms: int, tmp_path: Path
) -> None:
    """Heartbeats keep a connection alive, and end no wait of the application."""
    for address in addresses(tmp_path):
        with pair(acts, address, heartbeat_ms, tmp_path) as stage:
            found = judged(stage)

        assert not list(found.errors()), str(found)
        assert found.diagnosis.verdict == "stalled", str(found)
        assert found.listed == {(0, 0), (1, 0)}
