"""The failures of workers that run no Python name their language."""

from __future__ import annotations

from msgspec.structs import replace

from dstack.model import Failure
from dstack.probes.other_languages import with_languages

STACKS = Failure(stage="stacks", reason="no CPython with symbols was found in it", worker_id="java", pid=7)
LANGUAGES = {"java": "Java", "cpp": "C++"}


def test_all_failures_to_read_its_stacks_are_one_that_names_the_language() -> None:
    (failure,) = with_languages([STACKS, replace(STACKS, stage="memory", reason="another")], LANGUAGES)

    assert failure.reason == "it runs Java: its tasks and the refs that it holds were read, and no stack"
    assert failure.remedy == "See its stacks on its node: jstack PID"
    assert (failure.stage, failure.worker_id, failure.pid) == ("stacks", "java", 7)


def test_a_worker_in_python_and_other_failures_keep_their_reasons() -> None:
    others = [
        replace(STACKS, worker_id="python"),
        replace(STACKS, stage="process"),
        replace(STACKS, cause="ended"),
        replace(STACKS, worker_id=None),
    ]

    assert list(with_languages(others, LANGUAGES)) == others


def test_each_worker_has_its_own_failure() -> None:
    found = list(with_languages([STACKS, replace(STACKS, worker_id="cpp", pid=8)], LANGUAGES))

    assert [(one.worker_id, one.pid) for one in found] == [("java", 7), ("cpp", 8)]
    assert "gdb -p PID" in (found[1].remedy or "")
