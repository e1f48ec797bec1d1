"""What has been received from a node's probe is its answer, or a failure with a cause."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any, cast

import pytest

from dstack.observed.node import HostFigures, NodeAnswer
from dstack.observed.processes import Frame, Process
from dstack.probes.node.wire import packed
from dstack.probes.node_access import answers
from dstack.probes.node_access.answers import MALFORMED, NodeFailure, result_of, unpacked

FRAME = Frame(function="f", file="f.py", line=1, origin="user")
ANSWER = NodeAnswer(
    frames=(FRAME,),
    stacks=((0,),),
    sources={"f.py": {1: "x = 1"}},
    processes={"w": Process(pid=1, started_at=1.0)},
    host=HostFigures(),
    clock=(1.0, 2.0),
)


def received(answer: NodeAnswer) -> Any:
    """What arrives of an answer of a node's probe."""
    return result_of(packed(answer), unpacked)


def test_an_answer_arrives_unchanged() -> None:
    assert received(ANSWER) == ANSWER


def test_a_failure_arrives_with_its_cause_and_remedy() -> None:
    failure = NodeFailure("no connection", "unreachable", "Check it.")

    assert result_of(failure, unpacked) == failure


def test_a_name_that_is_not_unicode_arrives_with_escaped_bytes() -> None:
    frame = replace(FRAME, file="caf\udce9.py")

    assert received(replace(ANSWER, frames=(frame,))).frames[0].file == "caf\\udce9.py"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b'{"frames": 1}',
        packed(replace(ANSWER, clock=cast(Any, None))),
        zlib.compress(b"[" * 100_000),
        packed(ANSWER)[:-9],
    ],
    ids=["empty", "none", "list", "no answer", "clock", "nested", "cut off"],
)
def test_other_messages_are_malformed(text: bytes) -> None:
    for data in (text, zlib.compress(text)):
        assert result_of(data, unpacked) == MALFORMED


def test_a_bomb_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_ANSWER_BYTES", 1000)

    assert result_of(zlib.compress(b" " * 1001), unpacked) == MALFORMED
