"""py-spy's text as Ray's agents forward it, and timeouts in source lines."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dstack.probes.node_access import agent_texts
from dstack.probes.node_access.agent_texts import has_no_timeout, parse
from tests.fuzzing.effort import tries
from tests.fuzzing.mutations import by_bytes

TEXT = """Process 30972: ray::A.ping
Python v3.11.7 (/root/.pyenv/versions/3.11.7/bin/python3.11)

Thread 30972 (idle): "MainThread"
    Worker.get_objects (ray/_private/worker.py:1007)
    A.ping (a (b).py:6)
    <module> (ray/_private/workers/default_worker.py:323)
Thread 31094 (active+gil)
    PythonGCThread.run (ray/_private/gc_collect_manager.py:29)
Thread 0x7F00 (idle): "a \\"name\\": (idle)"
    f (x.py)
"""


def test_a_text_is_parsed() -> None:
    stacks = parse(TEXT)

    assert stacks is not None
    assert (stacks.pid, stacks.title) == (30972, "ray::A.ping")
    assert [(t.os_thread_id, t.name, t.is_running, len(t.frames)) for t in stacks.threads] == [
        (30972, "MainThread", False, 3),
        (31094, "", True, 1),
        (0, 'a \\"name\\": (idle)', False, 1),
    ]
    position = stacks.threads[0].frames[1].position
    assert (position.qualified, position.function, position.file, position.line) == ("A.ping", "ping", "a (b).py", 6)
    assert stacks.threads[2].frames[0].position.line == 0


@pytest.mark.parametrize("text", ["", "Error: no", "Thread 1 (idle)\n    f (x.py:1)\n", '[{"pid": 1}]'])
def test_other_texts_are_rejected(text: str) -> None:
    assert parse(text) is None


def test_long_texts_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_texts, "MAX_THREADS", 3)
    monkeypatch.setattr(agent_texts, "MAX_FRAMES", 2)
    many = "Process 1: x\n" + 'Thread 1 (idle): "t"\n' + "    f (x.py:1)\n" * 9 + 'Thread 2 (idle): "t"\n' * 9

    stacks = parse(many)

    assert stacks is not None
    assert [len(thread.frames) for thread in stacks.threads] == [2, 0, 0]


@given(st.lists(st.one_of(st.text(), st.sampled_from(TEXT.splitlines()))))
def test_malformed_texts_raise_no_error(lines: list[str]) -> None:
    stacks = parse("\n".join(["Process 1: x", *lines]))

    assert stacks is not None
    assert all(len(f.position.qualified) <= agent_texts.MAX_NAME for t in stacks.threads for f in t.frames)


@pytest.mark.parametrize(
    ("line", "is_plain"),
    [
        ("return ray.get(ref)", True),
        ("if ray.get(self.other.ping.remote(1, x=2)):", True),
        ("return ray.get(ref, timeout=1)", False),
        ("return ray.get(ref, 1)", False),
        ("return ray.get(*args)", False),
        ("return ray.get(ref, **terms)", False),
        ("return get(ref)", False),
        ("return ray.get(ray.get(ref))", False),
        ("return other.get(ref)", False),
        ("pass", False),
        ("return ray.get(", False),
    ],
)
def test_only_a_call_with_refs_alone_has_no_timeout(line: str, is_plain: bool) -> None:
    body = " pass" if line.endswith(":") else ""

    assert has_no_timeout(f"def ping():\n    {line}{body}\n", 2, "ping", "get") is is_plain


def test_the_source_must_have_the_function_of_the_frame() -> None:
    text = "def ping():\n    return ray.get(ref)\n\ndef pong():\n    done, _ = ray.wait(refs, num_returns=2)\n"

    assert has_no_timeout(text, 5, "pong", "wait")
    assert not has_no_timeout(text, 2, "pong", "get")
    assert not has_no_timeout(text, 1, "ping", "get")
    assert not has_no_timeout(text, 9, "ping", "get")


SLOW = (" (", " (:1", "a", '"', ": ", "Thread 1 (idle)", "1", ":1)", "\x85", "\r")


def test_mutations_are_threads_of_the_right_types() -> None:
    chance = random.Random(11)
    began = time.process_time()

    for _ in range(tries(10_000)):
        stacks = parse(by_bytes(TEXT.encode(), chance).decode(errors="replace"))
        for thread in stacks.threads if stacks else ():
            assert (type(thread.os_thread_id), type(thread.name), type(thread.is_running)) == (int, str, bool)
            assert 0 <= thread.os_thread_id <= agent_texts.MAX_NUMBER
            for position in (frame.position for frame in thread.frames):
                assert (type(position.qualified), type(position.file), type(position.line)) == (str, str, int)
                assert 0 <= position.line <= agent_texts.MAX_NUMBER

    assert time.process_time() - began < 20


@pytest.mark.parametrize("made", SLOW)
@pytest.mark.parametrize("head", ["    ", 'Thread 1 (idle): "', "Thread ", "Process 1: "])
def test_a_hostile_line_is_not_slow(made: str, head: str) -> None:
    began = time.process_time()

    parse(f"Process 1: x\nThread 1 (idle)\n{head}{made * 500_000})\n")

    assert time.process_time() - began < 2
