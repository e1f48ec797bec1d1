"""The words of facts: each kind has a row, and names of processes and requests in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, get_args

import pytest

from dstack.analysis.naming.descriptions import ASSUMPTIONS, NEVER, REASONS, SUBJECTS, in_words
from dstack.model.snapshot import PlacementGroup
from dstack.model.vertex_facts import (
    AssumptionKind,
    Fact,
    NeverKind,
    ProcessName,
    ReasonKind,
    ResourceRequest,
    SubjectKind,
    TaskName,
    never,
    reason,
    subject,
)

GROUP = PlacementGroup(placement_group_id="ab" * 18, state="CREATED", strategy="PACK", name="trainers")


@pytest.mark.parametrize(
    ("kinds", "rows"),
    [(SubjectKind, SUBJECTS), (ReasonKind, REASONS), (AssumptionKind, ASSUMPTIONS), (NeverKind, NEVER)],
)
def test_each_kind_of_fact_has_words(kinds: Any, rows: Mapping[str, object]) -> None:
    known: Collection[str] = get_args(kinds)

    assert rows.keys() == set(known)


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (subject("task", TaskName(task_id="cd" * 24)), "task cdcdcdcd"),
        (subject("process", ProcessName(sort="driver", entrypoint="python app/train.py")), "driver train.py"),
        (subject("process", ProcessName(pid=7, node="10.0.0.1")), "worker (pid 7, node 10.0.0.1)"),
        (subject("coroutine", ProcessName(sort="unlisted process")), "coroutine of a process, which is unreadable"),
        (subject("event loop", "io", None), 'event loop "io"'),
        (subject("thread", 7, ProcessName(sort="driver")), "thread 7 of driver"),
        (subject("room for request", ResourceRequest(amounts={"CPU": 1.0})), "room for 1 CPU"),
        (
            subject("scheduler", None, reason("not said", reason("no request"))),
            "scheduler, which has not placed it: it asks for no resources, and Ray does not say why",
        ),
        (
            never(
                "unsatisfiable",
                ResourceRequest(amounts={"GPU": 2.0}, bundle=1, is_in_group=True, group=GROUP),
                reason("lacking bundle"),
            ),
            "asks for 2 GPU in bundle 1 of placement group trainers, but no bundle has that much",
        ),
        (
            never("unsatisfiable", ResourceRequest(amounts={"GPU": 2.0}, is_in_group=True), reason("lacking bundle")),
            "asks for 2 GPU in its placement group, but no bundle has that much",
        ),
        (
            never("forked", "ray.get", "/app/train.py", 7),
            "waits in ray.get at train.py:7 in a forked process, where Ray does not work",
        ),
    ],
)
def test_words_of_facts(fact: Fact, words: str) -> None:
    assert in_words(fact) == words
