"""Answers are packed into few bytes."""

from __future__ import annotations

import os
from dataclasses import replace

from dstack.observed.node import NodeAnswer
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import packed
from dstack.probes.node_access.answers import unpacked, validated
from tests.sampling import OPTIONS, target


def alike(number: int) -> NodeAnswer:
    """The answer about so many processes that are like this one."""
    answer = NodeProbe().sample([target(os.getpid())], OPTIONS)
    (process,) = answer.processes.values()
    return replace(answer, processes={f"{index:056x}": replace(process, pid=index) for index in range(number)})


def test_a_packed_answer_is_the_same_answer() -> None:
    answer = alike(2)

    assert unpacked(packed(answer)) == validated(answer)


def test_workers_that_are_alike_take_little() -> None:
    one, ten = len(packed(alike(1))), len(packed(alike(10)))

    assert ten < 2 * one


def test_a_name_that_is_no_unicode_arrives_escaped() -> None:
    answer = alike(1)
    (process,) = answer.processes.values()
    (process,) = unpacked(
        packed(replace(answer, processes={"w": replace(process, name="bin/\udcff")}))
    ).processes.values()

    assert process.name == "bin/\\udcff"
