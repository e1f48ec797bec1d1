"""Answers are packed into few bytes."""

from __future__ import annotations

import json
import math
import os
import zlib

import pytest

from dstack.probes.node.packing import packed
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import Answer
from tests.sampling import OPTIONS, target


def alike(number: int) -> Answer:
    """The answer about so many processes that are like this one."""
    answer = NodeProbe().read([target(os.getpid())], OPTIONS)
    (process,) = answer["processes"].values()
    answer["processes"] = {f"{index:056x}": {**process, "pid": index} for index in range(number)}
    return answer


def test_a_packed_answer_is_the_same_answer() -> None:
    answer = alike(2)

    assert json.loads(zlib.decompress(packed(answer))) == json.loads(json.dumps(answer))


def test_workers_that_are_alike_take_little() -> None:
    one, ten = len(packed(alike(1))), len(packed(alike(10)))

    assert ten < 2 * one


def test_a_value_that_json_has_no_form_for_is_an_error() -> None:
    answer = alike(1)
    answer["host"]["load_1m"] = math.nan

    with pytest.raises(ValueError, match="not JSON compliant"):
        packed(answer)
