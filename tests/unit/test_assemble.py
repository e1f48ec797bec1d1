"""What a node answers is taken in as what it should be, or refused as a whole: nobody vouches for a node."""

from __future__ import annotations

import json
import os
import random
import re
import threading
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from dstack.analysis.diagnose import diagnose
from dstack.model import Cause, Sample, Snapshot, WorkerSample
from dstack.probes import assemble, node
from dstack.probes.assemble import Assembly, Senseless
from dstack.probes.node.probe import NodeProbe
from dstack.report.text import report_text
from dstack.snapshot_file import dumps, loads
from tests.mutations import ByValues

OPTIONS = {"native": False, "locals": True, "nonblocking": True, "deadline_s": 20.0, "thread_context": None}
MUTATIONS = 600


def answer() -> bytes:
    """A probe's, of this process with a blocked thread, as it comes from another node."""
    over = threading.Event()
    threading.Thread(target=over.wait, daemon=True).start()
    target = {"worker_id": "w", "pid": os.getpid(), "port": 0, "is_driver": True}
    result = NodeProbe().sample([target], {**OPTIONS, "children": False})
    over.set()
    result["processes"]["w"]["threads"][0]["call"] = {"kind": "ray.get", "frame": 0, "refs": ["0" * 56]}
    return json.dumps(result).encode()


def taken(result: Any) -> Snapshot:
    """A snapshot of what a node has answered. Raises :class:`Senseless`."""
    assembly = Assembly()
    processes, failures = assembly.add(["n"], result, 1, among=["w"])
    return Snapshot(
        dstack_version="0",
        taken_at=0,
        address="",
        ray_version="",
        frames=assembly.frames,
        stacks=assembly.stacks,
        sources=assembly.sources,
        failures=tuple(failures),
        samples=(Sample(0, 1, workers=tuple(WorkerSample(one, process=processes[one]) for one in processes)),),
    )


def test_mutations_of_an_answer_are_taken_in_whole_or_refused() -> None:
    chance = random.Random(5)
    values = ByValues(answer())
    good = 0

    for _ in range(MUTATIONS):
        try:
            snapshot = taken(json.loads(values.one(chance)))
        except Senseless:
            continue
        good += 1
        loads(dumps(snapshot))
        if good % 10 == 0:
            report_text(snapshot, diagnose(snapshot))

    assert MUTATIONS / 10 < good < MUTATIONS


def one_thread(frame: int = 0, count: int = 1) -> list[dict[str, Any]]:
    call = {"kind": "lock", "frame": frame}
    return [{"os_thread_id": n, "name": "t", "stack": 0, "role": "user", "call": call} for n in range(count)]


def reply(depth: int, threads: list[dict[str, Any]], *, is_child: bool) -> dict[str, Any]:
    """A probe's reply about one process, or about one and its child, whose threads have a stack of that depth."""
    process: dict[str, Any] = {"pid": 1, "started_at": 1.0, "threads": threads}
    if is_child:
        process = {"pid": 2, "started_at": 1.0, "threads": [], "children": [{**process, "parent_pid": 2}]}
    frames = [{"function": "f", "file": "f.py", "line": 1}]
    tables = {"frames": frames, "stacks": [[0] * depth], "sources": {}}
    return {**tables, "processes": {"w": process}, "failures": [], "host": {}}


@pytest.mark.parametrize("is_child", [False, True])
def test_a_call_in_no_frame_of_its_stack_is_refused(is_child: bool) -> None:
    assert loads(dumps(taken(reply(2, one_thread(frame=1), is_child=is_child))))

    with pytest.raises(Senseless):
        taken(reply(2, one_thread(frame=2), is_child=is_child))


@pytest.mark.parametrize("is_child", [False, True])
def test_more_frames_than_a_file_may_show_are_refused(is_child: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "MAX_FRAMES", 1_000)
    assert taken(reply(100, one_thread(count=10), is_child=is_child))

    with pytest.raises(Senseless):
        taken(reply(100, one_thread(count=11), is_child=is_child))


def test_what_a_node_says_of_its_host_changes_nothing_else() -> None:
    result = json.loads(answer())
    result["host"] = {**result["host"], "node_id": "other", "alive": False, "is_head": True}

    assembly = Assembly()
    assembly.add(["n"], result, 1)

    assert assembly.hosts["n"].keys() == {"cpu_count", "load_1m", "memory_total_bytes", "memory_available_bytes"}
    assert msgspec.to_builtins(assembly.hosts)


def test_every_cause_that_a_probe_names_is_one_of_the_model() -> None:
    """What travels to nodes cannot import the model, and an answer with another cause is refused as a whole."""
    sources = [path.read_text() for path in Path(node.__file__).parent.rglob("*.py")]
    named = {cause for text in sources for cause in re.findall(r'cause="(\w+)"', text)}

    assert {"permission", "namespace", "ended", "timeout"} <= named <= {*get_args(Cause), "other"}
