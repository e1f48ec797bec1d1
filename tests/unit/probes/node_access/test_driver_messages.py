"""What dstack's driver on the cluster sends back about a node is its answer, or a failure with a cause."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dstack.probes.node_access.answers import MALFORMED, NodeFailure
from dstack.probes.node_access.driver_messages import Reply
from dstack.probes.node_access.remote_driver import reply

ANSWER: dict[str, Any] = {
    "frames": [{"function": "f", "file": "f.py", "line": 1, "origin": "user"}],
    "stacks": [[0]],
    "sources": {"f.py": {1: "x = 1"}},
    "processes": {"w": {"pid": 1, "started_at": 1.0, "threads": []}},
    "failures": [],
    "host": {"cpu_count": None},
    "clock": (1.0, 2.0),
}


def received(result: object) -> Any:
    """What the other side gets of a node's result."""
    message = msgspec.json.decode(reply(7, "n", result), type=Reply)
    assert (message.number, message.node_id) == (7, "n")
    return message.result()


def test_an_answer_arrives_unchanged() -> None:
    assert received(ANSWER) == ANSWER


def test_a_failure_arrives_with_its_cause_and_remedy() -> None:
    failure = NodeFailure("no connection", "unreachable", "Check it.")

    assert received(failure) == failure


def test_a_name_that_is_not_unicode_arrives_with_escaped_bytes() -> None:
    frame = {**ANSWER["frames"][0], "file": "caf\udce9.py"}

    assert received({**ANSWER, "frames": [frame]})["frames"][0]["file"] == "caf\\udce9.py"


def nested() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    "result",
    [
        None,
        object(),
        [],
        {**ANSWER, "frames": object()},
        {**ANSWER, "clock": None},
        {"a": 2**70},
        {(1, 2): 3},
        nested(),
    ],
    ids=["none", "object", "list", "no JSON", "clock", "large", "key", "nested"],
)
def test_other_messages_are_malformed(result: object) -> None:
    assert received(result) == MALFORMED
