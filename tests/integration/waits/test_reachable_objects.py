"""The threads and coroutines that reach the object of a wait are found in every supported version of Python."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

import pytest

from dstack.probes.node.cpython.layouts import LAYOUTS, OWN_VERSION
from dstack.probes.node_access.targets import foreign_python
from tests.processes import running, wait_until
from tests.sampling import Plain, sample, target, words_of
from tests.unit.probes.node.waits.test_reachable_objects import COROUTINES, HEAD, HOLDERS, READY
from tests.versions.interpreters import python_or_skip

OTHERS = [f"{major}.{minor}" for major, minor in LAYOUTS if (major, minor) != OWN_VERSION]
LOOP = """
def coroutines():
    actor = Actor()
    run(lambda task: [task('waiter of loop', actor.timed()), task('other of loop', holds(actor))])
"""


HOLDERS_3_15 = {**HOLDERS, "a frozen dict": "start('other', keep, frozendict({'one': q}))"}


def source(holders: Iterable[str]) -> str:
    """A program in which each queue has a waiter and one other thread that holds it."""
    names = []
    cases = []
    for number, lines in enumerate(holders):
        names.append(f"case_{number}")
        body = f"q = queue.Queue()\nstart('waiter {number}', take, q)\n{lines.replace('other', f'other {number}', 1)}"
        cases.append(f"def {names[-1]}():\n{textwrap.indent(body, '    ')}\n")
    calls = "\n".join(f"{name}()" for name in (*names, "coroutines"))
    return f"{HEAD}{COROUTINES}{LOOP}{''.join(cases)}{calls}\n{READY}"


@pytest.mark.parametrize("version", OTHERS)
def test_each_waiter_is_reached_by_the_holder_of_its_queue(version: str, tmp_path: Path) -> None:
    holders = (HOLDERS_3_15 if version == "3.15" else HOLDERS).values()
    expected = {f"waiter {number}": {f"other {number}"} for number in range(len(holders))}
    with running([*python_or_skip(version), "-c", source(holders)], {}, tmp_path / "log") as child:
        child.wait_for_line("ready", deadline_s=60)

        def found() -> Plain | None:
            process = sample(target(child.pid, python=foreign_python(child.pid)))["processes"]["w"]
            reached = reached_in(process)
            return reached if reached.keys() >= {*expected, "waiter of loop"} else None

        reached = wait_until(found, deadline_s=60, what=lambda: "all waits")

    assert {name: reached[name] for name in expected} == expected
    assert any(others == {"other of loop"} for others in reached.values())


def reached_in(process: Plain) -> dict[str, set[str]]:
    """The names of the threads and coroutines that reach the object of each wait."""
    everything = [*process["threads"], *process["coroutines"]]
    names = {one.get("coroutine_id") or one["os_thread_id"]: one["name"] for one in everything}
    return {
        one["name"]: {
            names[other]
            for other in (
                *words_of(one["call"]).get("reached_by", ()),
                *words_of(one["call"]).get("reached_by_coroutines", ()),
            )
        }
        for one in everything
        if one["call"]
    }
